"""The ledger: settled steps of simulations."""

from hypothesis import given
from hypothesis import strategies as st

from stream_server.client_api.bits import Bits
from stream_server.server.ledger import Ledger, Steps


@given(st.sets(st.integers(0, 300)))
def test_packed_steps_are_the_bits_that_a_client_reads(indices: set[int]) -> None:
    steps = Steps()
    for index in indices:
        steps.add(range(index, index + 1))
    known = Bits(steps.packed())
    assert {i for i in range(301) if i in known} == indices
    assert len(Steps(steps.packed())) == len(steps) == len(indices)


def test_a_range_is_added_and_asked_for_at_once() -> None:
    steps = Steps()
    steps.add(range(1, 10, 3))
    assert [i for i in range(20) if i in steps] == [1, 4, 7]
    assert steps.has_any(range(0, 8, 7))
    assert not steps.has_any(range(0, 30, 3))
    assert not steps.has_any(range(100, 200))


def test_rejected_steps_are_settled_but_not_accepted() -> None:
    marks = Ledger()[3]
    marks.accept(range(4))
    marks.reject(range(4, 6), "nonfinite")
    assert (len(marks.settled), marks.num_accepted, marks.num_rejected) == (6, 4, 2)
    assert marks.reasons == {"nonfinite": 2}


def test_a_restored_ledger_knows_the_same_steps() -> None:
    ledger = Ledger()
    ledger.duplicates = 7
    ledger[3].accept(range(0, 30, 2))
    ledger[3].reject(range(1, 2), "nonfinite")
    ledger[900].accept(range(5, 6))
    other = Ledger()
    other.load_state_dict(ledger.state_dict())
    assert other.state_dict()["marks"].keys() == {3, 900}
    assert other.duplicates == 7
    for simulation in (3, 900):
        assert other[simulation].settled.packed().rstrip(b"\0") == ledger[simulation].settled.packed().rstrip(b"\0")
        assert other[simulation].num_accepted == ledger[simulation].num_accepted
        assert other[simulation].reasons == ledger[simulation].reasons
