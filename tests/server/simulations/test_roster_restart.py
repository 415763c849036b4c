"""A study that goes on: what becomes of its simulations. The decisions of rank 0."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from stream_server.messages import launcher_link, notices
from stream_server.messages.client import ATTACHING, Away, FieldSpec, Hello, Invalidate, Routing, TimeSteps, Welcome
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.simulations.handshake import Action, Reply
from stream_server.server.simulations.roster import Roster
from stream_server.storage.plain_state import from_bytes, to_bytes

NUM_RANKS = 2
NUM_STEPS = 4


def roster_of(num_planned: int, num_spare: int = 3, *, num_held_out: int = 1, num_steps: int | None = None) -> Roster:
    """A study of so many simulations, and parameters for some redraws."""
    facts = Welcome(
        study="s",
        simulation=0,
        attempt=0,
        parameters={},
        incarnation=1,
        endpoints=(("ipc:///a",), ("ipc:///b",)),
        time_steps=TimeSteps(num=num_steps),
        fields=(FieldSpec(name="u", shape=(2,)),),
        routing=Routing.STEPS,
        window_bytes=2**20,
        if_server_away=Away.WAIT,
        wait_s=600.0,
    )
    parameters = [{"x": float(i)} for i in range(num_planned + num_spare)]
    return Roster(facts, parameters, num_planned=num_planned, num_held_out=num_held_out, num_ranks=NUM_RANKS)


def restored(roster: Roster, finished: Mapping[int, int | None], other: Roster | None = None) -> Roster:
    """Another roster, of the same study unless given, that continues this one."""
    other = other or roster_of(len(roster.entries))
    other.load_state_dict(from_bytes(to_bytes(roster.state_dict())), finished)
    return other


def begun(simulation: int, attempt: int = 0, *, goes_on: bool = False) -> launcher_link.Attempt:
    return launcher_link.Attempt(simulation=simulation, attempt=attempt, public_key=None, goes_on=goes_on)


def share(simulation: int, attempt: int = 0, *, received: int = 2, complete: bool = False) -> notices.Share:
    return notices.Share(
        simulation=simulation,
        attempt=attempt,
        received=received,
        blocked=False,
        accepted=received,
        rejected=0,
        complete=complete,
        total=NUM_STEPS if complete else None,
    )


def finish(roster: Roster, simulation: int, attempt: int = 0) -> None:
    roster.launched(begun(simulation, attempt))
    for rank in range(NUM_RANKS):
        roster.share(rank, share(simulation, attempt, complete=True))


def give_up(roster: Roster, simulation: int, *, redraw: bool = False) -> list[Action]:
    message = launcher_link.GaveUp(simulation=simulation, attempts=3, reason="exit code 1", log="a.log", redraw=redraw)
    return roster.gave_up(message)


def invalidate(roster: Roster, simulation: int) -> None:
    roster.launched(begun(simulation))
    roster.invalidate(b"p", Invalidate(study="s", simulation=simulation, attempt=0, reason="diverged"))


def states(roster: Roster) -> dict[int, str]:
    return {i: entry.phase.value for i, entry in roster.entries.items()}


def told(actions: list[Action]) -> list[object]:
    return [action for action in actions if isinstance(action, notices.Notice)]


def to_launcher(actions: list[Action]) -> list[object]:
    return [action for action in actions if isinstance(action, launcher_link.ToLauncher)]


def test_what_will_never_come_is_counted_anew_after_a_restart() -> None:
    roster, other = (roster_of(3, 1, num_held_out=0, num_steps=NUM_STEPS) for _ in range(2))
    finish(roster, 0)
    roster.launched(begun(1))
    roster.share(0, share(1, received=3))
    give_up(roster, 1, redraw=True)
    roster.launched(begun(2))
    roster.share(0, share(2, received=1))
    give_up(roster, 2)
    assert roster.num_missing == (NUM_STEPS - 3) - NUM_STEPS + (NUM_STEPS - 1)
    assert restored(roster, {0: NUM_STEPS - 2}, other).num_missing == roster.num_missing + 2


def test_a_simulation_has_finished_if_the_ledgers_of_all_ranks_say_so_whatever_rank_0_knew() -> None:
    roster = roster_of(4)
    finish(roster, 0)
    finish(roster, 1)
    roster.launched(begun(2))
    other = restored(roster, {1: 4, 2: 3, 3: None})
    assert states(other) == {0: "waiting", 1: "finished", 2: "finished", 3: "finished"}
    assert [other.entries[i].num_steps for i in (1, 2)] == [4, 3]


@pytest.mark.parametrize("complete", [False, True])
def test_what_was_given_up_or_withdrawn_stays_so(*, complete: bool) -> None:
    roster = roster_of(3)
    give_up(roster, 1)
    invalidate(roster, 2)
    other = restored(roster, {1: 4, 2: 4} if complete else {})
    assert states(other) == {0: "waiting", 1: "given_up", 2: "invalid"}
    assert [other.entries[i].reason for i in (1, 2)] == ["exit code 1", "diverged"]
    assert other.failures == [{"id": 1, "attempts": 3, "reason": "exit code 1", "log": "a.log"}]


def test_a_given_up_simulation_that_is_retried_waits_and_what_it_lacks_is_to_come_again() -> None:
    roster, other = (roster_of(4, num_steps=NUM_STEPS) for _ in range(2))
    for simulation in (1, 2, 3):
        roster.launched(begun(simulation))
        roster.share(0, share(simulation, received=3))
    give_up(roster, 1)
    give_up(roster, 2)
    invalidate(roster, 3)
    other.load_state_dict(from_bytes(to_bytes(roster.state_dict())), {}, retried={1, 3})
    assert states(other) == {0: "waiting", 1: "waiting", 2: "given_up", 3: "invalid"}
    assert [it["id"] for it in other.failures] == [2]
    assert other.retried == [{"id": 1, "attempts": 3, "reason": "exit code 1", "log": "a.log"}]
    assert other.num_missing == roster.num_missing - (NUM_STEPS - 3)
    assert [(it.simulation, it.attempt) for it in other.plan] == [(0, -1), (1, 0)]


def test_failures_that_another_attempt_followed_are_remembered_over_a_restart() -> None:
    roster = roster_of(1)
    roster.launched(begun(0, 0))
    roster.failed(0, 0, "exit code 1", "a.log")
    roster.launched(begun(0, 1))
    assert restored(roster, {}).retried == [{"id": 0, "attempts": 1, "reason": "exit code 1", "log": "a.log"}]


def test_warnings_are_remembered_over_a_restart() -> None:
    roster = roster_of(3)
    finish(roster, 2)
    roster.invalidate(b"p", Invalidate(study="s", simulation=2, attempt=0, reason="diverged"))
    assert "diverged" in roster.warnings.texts[0]
    assert restored(roster, {2: 4}).warnings.texts == roster.warnings.texts


def test_all_others_wait_again_and_are_planned_with_their_attempts() -> None:
    roster = roster_of(4)
    roster.launched(begun(0, 2))
    roster.launched(begun(1))
    roster.failed(1, 0)
    finish(roster, 2)
    other = restored(roster, {2: 4})
    assert states(other) == {0: "waiting", 1: "waiting", 2: "finished", 3: "waiting"}
    assert [(it.simulation, it.attempt) for it in other.plan] == [(0, 2), (1, 0), (3, -1)]


def test_what_an_end_of_the_study_stopped_is_still_to_come() -> None:
    roster = roster_of(2)
    roster.launched(begun(0))
    roster.stop(launcher_link.StopSimulations(reason="saved", grace_s=1.0))
    assert states(restored(roster, {})) == {0: "waiting", 1: "waiting"}


def test_parameters_that_a_client_brought_are_those_of_its_simulation_for_ever() -> None:
    roster = roster_of(2)
    hello = Hello(study="s", simulation=1, attempt=ATTACHING, rank=0, num_ranks=1, parameters={"x": 9.0})
    roster.handshake.hello(b"p", hello)
    roster.attached(0, 1, 0)
    assert restored(roster, {}).parameters == {0: {"x": 0.0}, 1: {"x": 9.0}}


def test_a_redrawn_simulation_stays_and_the_next_redraw_takes_a_free_id() -> None:
    roster = roster_of(3)
    give_up(roster, 1, redraw=True)
    other = restored(roster, {}, roster_of(3))
    assert states(other) == {0: "waiting", 1: "given_up", 2: "waiting", 3: "waiting"}
    assert to_launcher(give_up(other, 2, redraw=True))[0] == launcher_link.AddSimulation(
        simulation=4, parameters={"x": 4.0}
    )


def test_a_study_that_has_grown_gets_new_ids_behind_those_of_redraws() -> None:
    roster = roster_of(3)
    give_up(roster, 1, redraw=True)
    other = restored(roster, {}, roster_of(5))
    assert states(other) == {0: "waiting", 1: "given_up", 2: "waiting", 3: "waiting", 4: "waiting", 5: "waiting"}
    assert other.parameters[5] == {"x": 5.0}
    assert to_launcher(give_up(other, 2, redraw=True))[0] == launcher_link.AddSimulation(
        simulation=6, parameters={"x": 6.0}
    )


def test_a_study_that_has_shrunk_keeps_what_has_begun() -> None:
    roster = roster_of(5)
    roster.launched(begun(3))
    give_up(roster, 1, redraw=True)
    other = restored(roster, {}, roster_of(2))
    assert states(other) == {0: "waiting", 1: "given_up", 3: "waiting", 5: "waiting"}


@pytest.mark.parametrize("sizes", [(3, 5, 5), (5, 3, 5), (3, 5, 3), (3, 6, 4)])
def test_a_study_may_change_its_size_again_and_again(sizes: tuple[int, ...]) -> None:
    roster = roster_of(sizes[0])
    give_up(roster, 1, redraw=True)
    for size in sizes[1:]:
        roster = restored(roster, {}, roster_of(size))
    assert len(roster.plan) == sizes[-1], "as many to come as the study says, the redrawn one in place of the other"
    assert len({tuple(it.parameters.values()) for it in roster.plan}) == sizes[-1]


def test_a_client_that_goes_on_is_welcomed_to_the_attempt_that_it_had() -> None:
    roster = roster_of(2)
    roster.launched(begun(1, 3))
    other = restored(roster, {})
    hello = Hello(study="s", simulation=1, attempt=3, rank=0, num_ranks=1)
    assert other.handshake.hello(b"p", hello) == []
    assert told(other.launched(begun(1, 3, goes_on=True))) == [
        notices.AttemptNotice(simulation=1, attempt=3, parameters={"x": 1.0}, goes_on=True)
    ]
    (reply,) = other.ready(1, 3)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Welcome)


def test_an_attempt_that_is_said_again_changes_nothing() -> None:
    roster = roster_of(2)
    roster.launched(begun(1, goes_on=True))
    roster.ready(1, 0)
    for rank in range(NUM_RANKS):
        roster.share(rank, share(1, received=0))
    before = to_bytes(roster.state_dict())
    shares = dict(roster.entries[1].shares)
    for goes_on in (True, False):
        assert roster.launched(begun(1, goes_on=goes_on)) == []
    entry = roster.entries[1]
    assert (to_bytes(roster.state_dict()), entry.shares, entry.ready) == (before, shares, True)
    roster.share(0, share(1, received=1))
    assert roster.num_survived == 1


def test_a_simulation_that_goes_on_is_counted_once_when_its_first_step_comes() -> None:
    roster = roster_of(2)
    roster.launched(begun(1, goes_on=True))
    roster.share(0, share(1, received=0))
    assert roster.num_survived == 0
    for received in (1, 2):
        roster.share(0, share(1, received=received))
        roster.share(1, share(1, received=received))
    assert roster.num_survived == 1


def test_a_simulation_that_was_started_again_has_not_survived() -> None:
    roster = roster_of(2)
    roster.launched(begun(0))
    roster.launched(begun(1, goes_on=True))
    roster.failed(1, 0)
    roster.launched(begun(1, 1))
    for simulation, attempt in ((0, 0), (1, 1)):
        roster.share(0, share(simulation, attempt))
    assert roster.num_survived == 0


def test_a_simulation_that_waited_in_the_list_of_a_worker_or_in_a_queue_has_not_survived() -> None:
    roster = roster_of(3)
    attempts = [begun(1, goes_on=True), begun(2, goes_on=True)]
    roster.launched(replace(begun(0, goes_on=True), waits_for="simulations before it in its worker"))
    for attempt in attempts:
        roster.launched(attempt)
    roster.queued(launcher_link.Queued(simulations=(1,), waits_for="Priority"))
    roster.queued(launcher_link.Queued(simulations=(0, 1), waits_for=None))
    for simulation in range(3):
        roster.share(0, share(simulation))
    assert roster.num_survived == 1


def test_a_simulation_that_survives_twice_is_counted_twice() -> None:
    roster = roster_of(2)
    for _ in range(2):
        roster = restored(roster, {})
        roster.launched(begun(1, goes_on=True))
        roster.share(0, share(1))
    assert roster.num_survived == 2


def test_the_other_ranks_are_told_what_has_ended() -> None:
    roster = roster_of(4)
    give_up(roster, 1)
    invalidate(roster, 2)
    assert restored(roster, {0: 4}).ended() == {"finished": [0], "invalid": [2], "final": False}
    assert restored(roster, {0: 4, 3: 4}).ended() == {"finished": [0, 3], "invalid": [2], "final": True}


def test_a_study_of_which_nothing_is_left_to_come_says_so_when_it_begins() -> None:
    roster = roster_of(3)
    give_up(roster, 1)
    other = restored(roster, {0: 4, 2: 4})
    assert told(other.begin()) == [notices.AllTerminal(states={0: "finished", 1: "given_up", 2: "finished"})]


def test_a_study_with_something_left_to_come_says_nothing_when_it_begins() -> None:
    other = restored(roster_of(3), {0: 4, 1: 4})
    assert other.begin() == []


def test_how_a_simulation_ended_is_known_after_a_restart() -> None:
    roster = roster_of(2)
    finish(roster, 0)
    other = restored(roster, {0: 4})
    assert (other.ends[0].state, other.ends[0].num_steps, other.ends[0].num_sent) == ("finished", 4, 4)
    assert (other.ends[1].state, other.ends[1].num_sent) == ("waiting", None)
    assert other.table.num_settled == roster.table.num_settled == 4


events = st.one_of(
    st.tuples(st.just("launched"), st.integers(0, 3), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("share"), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("failed"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("gave_up"), st.integers(0, 3), st.booleans()),
)


def happen(roster: Roster, event: Any) -> None:
    match event:
        case ("launched", simulation, attempt, goes_on):
            if attempt >= roster.entries[simulation].attempt:
                roster.launched(begun(simulation, attempt, goes_on=goes_on))
        case ("share", simulation, attempt, rank, complete):
            roster.share(rank, share(simulation, attempt, complete=complete))
        case ("failed", simulation, attempt):
            roster.failed(simulation, attempt)
        case ("gave_up", simulation, redraw):
            give_up(roster, simulation, redraw=redraw)


@given(st.lists(events, max_size=30))
def test_a_restored_roster_says_of_itself_what_it_was_given(happened: list[Any]) -> None:
    roster = roster_of(4)
    for event in happened:
        happen(roster, event)
    finished = {
        i: roster.entries[i].num_steps for i, entry in roster.entries.items() if entry.phase is SimulationPhase.FINISHED
    }
    other = restored(roster, finished, roster_of(4))
    again = restored(other, finished, roster_of(4))
    assert to_bytes(again.state_dict()) == to_bytes(other.state_dict())
    assert states(other) == {
        i: state if SimulationPhase(state).terminal else "waiting" for i, state in states(roster).items()
    }
    assert (other.failures, other.retried, other.failed_later, other.num_survived, other.parameters) == (
        roster.failures,
        roster.retried,
        roster.failed_later,
        roster.num_survived,
        roster.parameters,
    )
    assert {it.simulation: it.attempt for it in other.plan} == {it.simulation: it.attempt for it in roster.plan}


@given(st.lists(st.one_of(events, st.just(("saved",))), max_size=40))
@example([("launched", 0, 0, False), ("failed", 0, 0), ("saved",), ("share", 0, 0, 0, False)])
def test_a_roster_that_was_saved_before_saves_what_another_saves_at_once(happened: list[Any]) -> None:
    roster, other = roster_of(4), roster_of(4)
    for event in happened:
        if event == ("saved",):
            roster.state_dict()
            continue
        for each in (roster, other):
            happen(each, event)
    assert to_bytes(roster.state_dict()) == to_bytes(other.state_dict())


@given(st.lists(events, max_size=30))
def test_the_counts_are_those_of_all_simulations(happened: list[Any]) -> None:
    roster = roster_of(4)
    for event in happened:
        happen(roster, event)
    for it in (roster, restored(roster, {0: 4}, roster_of(4))):
        counted = Counter(states(it).values())
        assert {state: num for state, num in it.table.counts().items() if num} == counted
        assert it.table.num_settled == sum(entry.num_settled for entry in it.entries.values())
        assert it.ended()["final"] == (not counted["waiting"] and not counted["running"])
