import numpy as np
import pytest

from stream_server.buffers.frozen import SlotRetention


def retention(*slots: int, num_waiting: int = 0, limit: int = 6) -> SlotRetention:
    frozen = np.zeros(10, bool)
    frozen[list(slots)] = True
    return SlotRetention(frozen, num_waiting=num_waiting, limit=limit)


def numbers(*slots: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.array(slots, np.intp)


def test_a_frozen_slot_that_nobody_holds_is_free_when_it_is_thawed() -> None:
    kept = retention(1, 2, 3)
    assert kept.retain([2, 7]) == [7]
    assert kept.num_retained == 1
    assert kept.thaw(numbers(1, 2)) == [2]
    assert kept.num_retained == 0


def test_a_slot_that_was_thawed_is_free_as_soon_as_nobody_holds_it() -> None:
    kept = retention(1, 2)
    assert kept.thaw(numbers(1)) == []
    assert kept.retain([1]) == [1]
    assert kept.thaw(numbers(1)) == []


def test_it_is_done_when_all_is_thawed() -> None:
    kept = retention(1, 2, 3)
    kept.thaw(numbers(3, 1))
    kept.retain([2])
    assert not kept.done
    assert kept.thaw_all() == [2]
    assert kept.done
    assert kept.thaw_all() == []


def test_what_is_kept_back_takes_the_place_of_new_samples() -> None:
    kept = retention(1, 2, 3, limit=6)
    assert kept.num_admissible(population=3) == 3
    kept.retain([1, 2])
    assert kept.num_admissible(population=3) == 1
    assert kept.num_admissible(population=9) == 0


@pytest.mark.parametrize(("num_admitted", "num_admissible"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_what_waited_at_the_freeze_may_always_enter_and_brings_its_place_along(
    num_admitted: int, num_admissible: int
) -> None:
    kept = retention(1, 2, 3, 4, 5, num_waiting=2, limit=5)
    kept.admit(num_admitted)
    assert kept.num_admissible(population=3 + num_admitted) == num_admissible
