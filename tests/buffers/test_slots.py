import numpy as np
import pytest

from stream_server.buffers import Slots


def filled_slots() -> Slots:
    slots = Slots({"u": (2, 3), "p": ()}, 5)
    slots.allocate({"u": np.float32, "p": np.float64})
    for slot in slots.claim(5):
        slots.arrays["u"][slot] = slot
        slots.arrays["p"][slot] = -slot
    return slots


def test_a_field_is_one_array_with_a_row_for_each_slot() -> None:
    slots = filled_slots()
    assert {name: (array.shape, array.dtype) for name, array in slots.arrays.items()} == {
        "u": ((5, 2, 3), np.dtype(np.float32)),
        "p": ((5,), np.dtype(np.float64)),
    }
    assert slots.sample_bytes == 32


def test_gather_copies_the_rows_in_the_order_of_the_slots() -> None:
    slots = filled_slots()
    rows = slots.gather(np.array([3, 1]))
    assert rows["u"][:, 0, 0].tolist() == [3, 1]
    assert rows["p"].tolist() == [-3, -1]
    rows["p"][:] = 7
    assert slots.arrays["p"][3] == -3


def test_gather_fills_the_leading_rows_of_the_arrays_it_is_given() -> None:
    slots = filled_slots()
    out: dict[str, np.ndarray] = {"u": np.zeros((4, 2, 3), np.float32), "p": np.zeros(4)}
    rows = slots.gather(np.array([3, 1, 2]), out)
    assert rows["p"].base is out["p"]
    assert out["p"].tolist() == [-3, -1, -2, 0]
    assert out["u"][:, 1, 2].tolist() == [3, 1, 2, 0]


def test_fresh_slots_are_claimed_as_one_contiguous_run() -> None:
    assert Slots({"u": (1,)}, 6).claim(4) == [0, 1, 2, 3]


def test_the_slot_freed_last_is_claimed_first() -> None:
    slots = filled_slots()
    slots.free([4, 2])
    assert slots.claim(1) == [2]


def test_a_claim_of_more_than_there_is_takes_nothing() -> None:
    slots = Slots({"u": (1,)}, 3)
    assert slots.claim(4) == []
    assert slots.num_free == 3


def test_a_field_that_was_left_out_is_zero_and_absent_until_the_slot_is_claimed_again() -> None:
    slots = filled_slots()
    slots.leave_out("p", [2])
    assert slots.present["p"].tolist() == [True, True, False, True, True]
    assert slots.arrays["p"][2] == 0
    slots.free([2])
    slots.claim(1)
    assert slots.present["p"].all()


def test_a_slot_is_filled_with_a_sample_and_what_that_lacks_is_left_out() -> None:
    slots = Slots({"u": (2,), "v": ()}, 2)
    slots.allocate({"u": np.float64, "v": np.float32})
    [slot] = slots.claim(1)
    slots.fill(slot, 3, 40, {"u": np.array([1.0, 2.0])})
    assert (slots.simulation_ids[slot], slots.time_steps[slot]) == (3, 40)
    assert (slots.value("u", slot).tolist(), slots.value("v", slot)) == ([1.0, 2.0], 0)
    assert (slots.present["u"][slot], slots.present["v"][slot]) == (True, False)


def test_a_claimed_slot_has_not_been_seen() -> None:
    slots = filled_slots()
    slots.seen[2] = 9
    slots.free([2])
    slots.claim(1)
    assert slots.seen[2] == 0


def test_a_slot_that_is_freed_twice_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="freed twice"):
        Slots({"u": (1,)}, 3).free([0])


@pytest.mark.parametrize(
    ("shapes", "num_slots", "message"),
    [
        ({"u": (1,)}, 0, "num_slots is 0"),
        ({}, 1, "at least 1 field"),
        ({"u": (3, 0)}, 1, r"'u' must be at least 1, but its shape is \(3, 0\)"),
    ],
)
def test_slots_that_could_hold_nothing_are_refused(
    shapes: dict[str, tuple[int, ...]], num_slots: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Slots(shapes, num_slots)


def test_dtypes_are_given_for_exactly_the_fields() -> None:
    with pytest.raises(ValueError, match=r"each of the fields \['p', 'u'\], found \['q', 'u'\]"):
        Slots({"u": (1,), "p": ()}, 1).allocate({"u": np.float32, "q": np.float32})
