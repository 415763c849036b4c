"""The ledger: settled steps of simulations."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stream_server.client_api.retention import Bits
from stream_server.messages.client import Routing
from stream_server.messages.routing import Dealing
from stream_server.server.intake.ledger import Ledger, StepSet, saved_entries
from stream_server.storage.plain_state import from_bytes, to_bytes


@given(st.sets(st.integers(0, 300)))
def test_packed_steps_are_the_bits_that_a_client_reads(indices: set[int]) -> None:
    steps = StepSet()
    for index in indices:
        steps.add(range(index, index + 1))
    known = Bits(steps.packed())
    assert {i for i in range(301) if i in known} == indices
    assert len(StepSet(steps.packed())) == len(steps) == len(indices)


def test_a_range_is_added_and_asked_for_at_once() -> None:
    steps = StepSet()
    steps.add(range(1, 10, 3))
    assert [i for i in range(20) if i in steps] == [1, 4, 7]
    assert steps.has_any(range(0, 8, 7))
    assert not steps.has_any(range(0, 30, 3))
    assert not steps.has_any(range(100, 200))


def test_rejected_steps_are_settled_but_not_accepted() -> None:
    entry = Ledger()[3]
    entry.accept(range(4))
    entry.reject(range(4, 6), "nonfinite")
    assert (len(entry.settled), entry.num_accepted, entry.num_rejected) == (6, 4, 2)
    assert entry.reasons == {"nonfinite": 2}


def test_a_restored_ledger_knows_the_same_steps() -> None:
    ledger = Ledger()
    ledger.duplicates = 7
    ledger[3].accept(range(0, 30, 2))
    ledger[3].reject(range(1, 2), "nonfinite")
    ledger[900].accept(range(5, 6))
    other = Ledger()
    other.load_state_dict(ledger.state_dict())
    assert list(other.entries) == [3, 900]
    assert other.duplicates == 7
    for simulation in (3, 900):
        assert other[simulation].settled.packed().rstrip(b"\0") == ledger[simulation].settled.packed().rstrip(b"\0")
        assert other[simulation].num_accepted == ledger[simulation].num_accepted
        assert other[simulation].reasons == ledger[simulation].reasons


STEPS = 40

Moves = list[tuple[int, int, bool]]

moves = st.lists(st.tuples(st.integers(0, 3), st.integers(0, STEPS - 1), st.booleans()), max_size=60)


def play(ledger: Ledger, moves: Moves) -> None:
    """Settle one step after the other, those of a known step as duplicates."""
    for simulation, index, is_fit in moves:
        entry = ledger[simulation]
        if index in entry.settled:
            ledger.duplicates += 1
        elif is_fit:
            entry.accept(range(index, index + 1))
        else:
            entry.reject(range(index, index + 1), "nonfinite" if index % 3 else "shape")
        entry.total = len(entry.settled) + 1 if index % 2 else None
        entry.complete = index % 5 == 0


def told(ledger: Ledger) -> Any:
    """All that a ledger knows, trailing zeros apart."""
    return ledger.duplicates, {
        simulation: (
            entry.settled.packed().rstrip(b"\0"),
            entry.rejected.packed().rstrip(b"\0"),
            dict(entry.reasons),
            entry.complete,
            entry.total,
        )
        for simulation, entry in ledger.entries.items()
    }


@given(moves, moves)
def test_a_ledger_restored_at_any_point_goes_on_as_if_nothing_had_been(before: Moves, after: Moves) -> None:
    ledger, other = Ledger(), Ledger()
    play(ledger, before)
    other.load_state_dict(from_bytes(to_bytes(ledger.state_dict())))
    for it in (ledger, other):
        play(it, after)
    assert told(other) == told(ledger)


@given(moves, moves)
def test_what_is_settled_after_the_state_was_taken_is_not_in_it(before: Moves, after: Moves) -> None:
    ledger = Ledger()
    play(ledger, before)
    expected = told(ledger)
    state = ledger.state_dict()
    play(ledger, after)
    restored = Ledger()
    restored.load_state_dict(state)
    assert told(restored) == expected


@given(st.lists(moves, max_size=4))
def test_a_ledger_that_was_saved_before_saves_what_another_saves_at_once(parts: list[Moves]) -> None:
    ledger, other = Ledger(), Ledger()
    for number, part in enumerate(parts):
        still_open = [it for it in part if it[0] > number]
        for it in (ledger, other):
            play(it, still_open)
            # From now on nothing more comes of it.
            it[number].finished = True
        ledger.state_dict()
    assert to_bytes(ledger.state_dict()) == to_bytes(other.state_dict())
    assert told(ledger) == told(other)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The fates of the steps of one simulation on all ranks, and the ranks whose share is complete."""

    simulation: int
    fates: dict[int, str]
    complete: frozenset[int]


REASONS = ("", "nonfinite", "shape")

outcomes = st.lists(
    st.builds(
        Outcome,
        simulation=st.integers(0, 9),
        fates=st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from(REASONS), max_size=STEPS),
        complete=st.frozensets(st.integers(0, 3)),
    ),
    unique_by=lambda outcome: outcome.simulation,
    max_size=4,
)


def dealt(outcomes: list[Outcome], num_ranks: int, routing: Routing) -> list[Ledger]:
    """The ledgers of so many ranks that settled each step where its routing brought it."""
    ledgers = [Ledger() for _ in range(num_ranks)]
    for outcome in outcomes:
        for rank, ledger in enumerate(ledgers):
            ledger[outcome.simulation].complete = rank in outcome.complete
        for index, reason in outcome.fates.items():
            rank = Dealing(routing, num_ranks).server_rank(outcome.simulation, index)
            entry = ledgers[rank][outcome.simulation]
            if reason:
                entry.reject(range(index, index + 1), reason)
            else:
                entry.accept(range(index, index + 1))
    return ledgers


def redealt_ledgers(states: list[dict[str, Any]], num_ranks: int, routing: Routing) -> list[Ledger]:
    ledgers = []
    for rank in range(num_ranks):
        ledger = Ledger()
        ledger.load_state_dict(from_bytes(to_bytes(Ledger.redealt(states, rank, Dealing(routing, num_ranks)))))
        ledgers.append(ledger)
    return ledgers


def indices(steps: StepSet) -> set[int]:
    return {index for index in range(steps.stop) if index in steps}


@given(outcomes, st.integers(1, 4), st.integers(1, 4), st.sampled_from(Routing))
def test_a_ledger_of_another_number_of_ranks_has_each_step_where_its_routing_brings_it(
    outcomes: list[Outcome], before: int, after: int, routing: Routing
) -> None:
    saved = dealt(outcomes, before, routing)
    found = redealt_ledgers([ledger.state_dict() for ledger in saved], after, routing)
    expected = dealt(outcomes, after, routing)
    for rank, (ledger, other) in enumerate(zip(found, expected, strict=True)):
        for outcome in outcomes:
            mine, theirs = ledger[outcome.simulation], other[outcome.simulation]
            assert indices(mine.settled) == indices(theirs.settled), rank
            assert indices(mine.rejected) == indices(theirs.rejected), rank
            assert sum(mine.reasons.values()) == len(mine.rejected)


@given(outcomes, st.integers(1, 4), st.integers(1, 4), st.sampled_from(Routing))
def test_no_rejected_step_loses_its_reason_on_another_number_of_ranks(
    outcomes: list[Outcome], before: int, after: int, routing: Routing
) -> None:
    saved = dealt(outcomes, before, routing)
    found = redealt_ledgers([ledger.state_dict() for ledger in saved], after, routing)
    for outcome in outcomes:
        reasons = Counter(reason for reason in outcome.fates.values() if reason)
        assert sum((Counter(ledger[outcome.simulation].reasons) for ledger in found), Counter()) == reasons


@given(outcomes, st.integers(1, 4), st.integers(1, 4))
def test_a_share_is_whole_on_another_number_of_ranks_only_if_it_was_on_all(
    outcomes: list[Outcome], before: int, after: int
) -> None:
    saved = dealt(outcomes, before, Routing.STEPS)
    for ledger in redealt_ledgers([ledger.state_dict() for ledger in saved], after, Routing.STEPS):
        for outcome in outcomes:
            assert ledger[outcome.simulation].complete == (set(range(before)) <= outcome.complete)


def test_a_share_is_not_whole_if_some_rank_never_heard_of_its_simulation() -> None:
    known, unknown = Ledger(), Ledger()
    known[7].accept(range(2))
    known[7].complete = True
    states = [known.state_dict(), unknown.state_dict()]
    [entry] = saved_entries(Ledger.redealt(states, 0, Dealing(Routing.STEPS, 1)))
    assert not entry.complete


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_duplicates_are_counted_once_on_another_number_of_ranks(duplicates: list[int], after: int) -> None:
    states = []
    for num in duplicates:
        ledger = Ledger()
        ledger.duplicates = num
        states.append(ledger.state_dict())
    found = redealt_ledgers(states, after, Routing.STEPS)
    assert sum(ledger.duplicates for ledger in found) == sum(duplicates)


def test_the_number_of_steps_is_known_to_all_if_it_was_to_one() -> None:
    first, second = Ledger(), Ledger()
    first[0].accept(range(0, 4, 2))
    second[0].accept(range(1, 4, 2))
    second[0].total = 4
    found = redealt_ledgers([first.state_dict(), second.state_dict()], 3, Routing.STEPS)
    assert [ledger[0].total for ledger in found] == [4, 4, 4]
