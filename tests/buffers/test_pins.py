import numpy as np
import pytest

from stream_server.buffers.pins import Draw, Pins
from stream_server.buffers.policy import NO_SLOTS


def slots(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.array(numbers, np.intp)


def test_a_slot_that_no_draw_holds_is_free_as_soon_as_it_is_retired() -> None:
    pins = Pins()
    pins.pin(slots(1, 2), 2, NO_SLOTS)
    assert pins.retire([3, 4]) == [3, 4]


def test_a_held_slot_is_free_only_when_its_draw_is_released() -> None:
    pins = Pins()
    draw = pins.pin(slots(1, 2), 2, NO_SLOTS)
    assert pins.retire([2, 3]) == [3]
    assert pins.release(draw) == [2]


@pytest.mark.parametrize("first_released", [0, 1])
def test_a_slot_that_two_draws_hold_is_free_when_both_are_released(first_released: int) -> None:
    pins = Pins()
    draws = [pins.pin(slots(1, 2), 2, NO_SLOTS), pins.pin(slots(2, 3), 1, NO_SLOTS)]
    pins.retire([2])
    assert pins.release(draws[first_released]) == []
    assert pins.release(draws[1 - first_released]) == [2]


def test_a_slot_that_its_own_draw_retires_is_free_at_the_release_unless_another_draw_holds_it() -> None:
    pins = Pins()
    earlier = pins.pin(slots(1, 2), 2, NO_SLOTS)
    later = pins.pin(slots(2, 3), 1, slots(2, 3))
    assert pins.release(later) == [3]
    assert pins.release(earlier) == [2]


def test_a_released_draw_holds_nothing() -> None:
    pins = Pins()
    pins.release(pins.pin(slots(1), 1, NO_SLOTS))
    pins.pin(slots(2), 1, NO_SLOTS)
    assert pins.retire([1]) == [1]


def test_releasing_twice_is_an_error_of_ours() -> None:
    pins = Pins()
    draw = pins.pin(slots(1), 1, NO_SLOTS)
    pins.release(draw)
    with pytest.raises(AssertionError, match="released twice"):
        pins.release(draw)


def test_the_draws_that_are_out_are_told_in_their_order() -> None:
    pins = Pins()
    draws: list[Draw] = [pins.pin(slots(number), number, NO_SLOTS) for number in range(4)]
    pins.release(draws[1])
    assert pins.draws() == [draws[0], draws[2], draws[3]]
