"""Which simulations the study has: the decisions of rank 0."""

from typing import Any

import pytest
from msgspec.structs import replace

from stream_server.messages import launcher_link, notices
from stream_server.messages.client import (
    ATTACHING,
    Away,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)
from stream_server.server.intake.mailbox import SimulationsFailed, SimulationWarning
from stream_server.server.simulations.handshake import Action, Reply
from stream_server.server.simulations.roster import Roster
from stream_server.storage.plain_state import from_bytes, to_bytes

FACTS = Welcome(
    study="s",
    simulation=0,
    attempt=0,
    parameters={},
    incarnation=1,
    endpoints=(("ipc:///a",), ("ipc:///b",)),
    time_steps=TimeSteps(num=4),
    fields=(FieldSpec(name="u", shape=(2,)),),
    routing=Routing.STEPS,
    window_bytes=2**20,
    if_server_away=Away.WAIT,
    wait_s=600.0,
)


@pytest.fixture
def roster() -> Roster:
    return Roster(FACTS, [{"x": float(i)} for i in range(4)], num_planned=3, num_held_out=1, num_ranks=2)


def hello(simulation: int | None, attempt: int = 0, **others: object) -> Hello:
    values = {"study": "s", "simulation": simulation, "attempt": attempt, "rank": 0, "num_ranks": 1}
    return Hello(**{**values, **others})  # type: ignore[arg-type]


def share(
    simulation: int, *, attempt: int = 0, received: int = 2, complete: bool = True, total: int = 4
) -> notices.Share:
    return notices.Share(
        simulation=simulation,
        attempt=attempt,
        received=received,
        blocked=False,
        accepted=received,
        rejected=0,
        complete=complete,
        total=total,
    )


def begun(simulation: int, attempt: int = 0, **others: Any) -> launcher_link.Attempt:
    """The launcher's word of an attempt."""
    return launcher_link.Attempt(**{"simulation": simulation, "attempt": attempt, "public_key": None, **others})


def finish(roster: Roster, simulation: int, attempt: int = 0) -> list[Action]:
    roster.launched(begun(simulation, attempt))
    roster.share(0, share(simulation, attempt=attempt))
    return roster.share(1, share(simulation, attempt=attempt))


def replies(actions: list[Action]) -> list[object]:
    return [action.message for action in actions if isinstance(action, Reply)]


def told(actions: list[Action]) -> list[object]:
    return [action for action in actions if isinstance(action, notices.Notice)]


def to_launcher(actions: list[Action]) -> list[object]:
    return [action for action in actions if isinstance(action, launcher_link.ToLauncher)]


def test_a_hello_is_answered_only_when_every_rank_knows_the_attempt(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    assert roster.handshake.hello(b"p", hello(1)) == []
    (reply,) = roster.ready(1, 0)
    assert isinstance(reply, Reply)
    assert reply.peer == b"p"
    assert isinstance(reply.message, Welcome)
    assert reply.message.parameters == {"x": 1.0}


def test_a_hello_that_comes_before_its_attempt_waits_for_it(roster: Roster) -> None:
    assert roster.handshake.hello(b"p", hello(1)) == []
    roster.launched(begun(1, 0))
    assert [type(message) for message in replies(roster.ready(1, 0))] == [Welcome]


def test_a_hello_said_twice_is_answered_once(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.handshake.hello(b"p", hello(1))
    roster.handshake.hello(b"p", hello(1))
    assert len(replies(roster.ready(1, 0))) == 1


def test_a_second_process_for_one_rank_is_refused_and_the_simulation_withdrawn(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.hello(b"p", hello(1))
    roster.hello(b"q", hello(1, rank=1, num_ranks=2))
    roster.ready(1, 0)
    actions = roster.hello(b"r", hello(1))
    [refusal] = replies(actions)
    assert isinstance(refusal, Refusal)
    assert "two processes of simulation 1 connect as rank 0 of 1" in refusal.text
    assert "pass rank and num_ranks to connect" in refusal.text
    assert "stream_connect(" in refusal.text
    [invalid] = to_launcher(actions)
    assert invalid == launcher_link.Invalid(simulation=1, reason=refusal.text)
    assert notices.Terminal(simulation=1, state="invalid", reason=refusal.text) in told(actions)
    assert roster.hello(b"s", hello(1)) == [Reply(peer=b"s", message=refusal)]


def test_a_second_process_that_comes_when_its_simulation_has_finished_is_refused_and_told(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.hello(b"p", hello(1))
    roster.ready(1, 0)
    finish(roster, 1)
    assert [type(message) for message in replies(roster.hello(b"p", hello(1)))] == [Stop]
    actions = roster.hello(b"q", hello(1))
    assert [type(message) for message in replies(actions)] == [Refusal]
    [warning] = roster.warnings.texts
    assert SimulationWarning(text=warning) in actions
    assert "two processes of simulation 1" in warning


def test_the_process_of_another_attempt_or_of_a_new_server_is_no_second_one(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.hello(b"p", hello(1))
    roster.ready(1, 0)
    assert [type(message) for message in replies(roster.hello(b"p", hello(1)))] == [Welcome]
    roster.failed(1, 0)
    assert roster.hello(b"q", hello(1, attempt=1)) == []
    roster.launched(begun(1, 1))
    assert [type(message) for message in replies(roster.ready(1, 1))] == [Welcome]
    # One of the attempt before that is late.
    [refusal] = replies(roster.hello(b"r", hello(1, attempt=0)))
    assert isinstance(refusal, Refusal)
    assert "two processes" not in refusal.text
    later = Roster(FACTS, [{"x": float(i)} for i in range(4)], num_planned=3, num_held_out=1, num_ranks=2)
    later.launched(begun(1, 1, goes_on=True))
    later.ready(1, 1)
    assert [type(message) for message in replies(later.hello(b"other name", hello(1, attempt=1)))] == [Welcome]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (hello(1, study="other"), Reason.WRONG_STUDY),
        (hello(17), Reason.UNKNOWN_SIMULATION),
        (hello(1, attempt=0), Reason.STALE_ATTEMPT),
        (hello(None, attempt=ATTACHING, num_ranks=2), Reason.UNKNOWN_SIMULATION),
    ],
)
def test_a_hello_that_cannot_be_right_is_refused(roster: Roster, message: Hello, reason: Reason) -> None:
    roster.launched(begun(1, 1))
    roster.ready(1, 1)
    (refusal,) = replies(roster.handshake.hello(b"p", message))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason


def test_a_new_attempt_is_not_welcomed_by_the_readiness_of_the_old_one(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.ready(1, 0)
    roster.launched(begun(1, 1))
    roster.handshake.hello(b"p", hello(1, attempt=1))
    assert roster.ready(1, 0) == []
    assert len(roster.ready(1, 1)) == 1


def test_a_simulation_is_finished_when_every_rank_has_its_share(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    assert told(roster.share(0, share(0))) == []
    actions = roster.share(1, share(0))
    assert told(actions) == [notices.Terminal(simulation=0, state="finished", reason="")]
    assert launcher_link.Finished(simulation=0) in to_launcher(actions)


def test_a_share_of_an_older_attempt_does_not_finish_a_simulation(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.share(0, share(0))
    roster.launched(begun(0, 1))
    assert roster.share(1, share(0, attempt=0)) == []
    assert roster.table.counts()["running"] == 1


def test_progress_is_the_sum_over_the_ranks(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.share(0, share(0, received=2, complete=False))
    (progress,) = to_launcher(roster.share(1, share(0, received=1, complete=False)))
    assert progress == launcher_link.ProgressReport(simulation=0, attempt=0, received=3, blocked=False)


def test_the_roster_is_final_when_every_simulation_has_ended(roster: Roster) -> None:
    for simulation in (0, 1):
        assert not any(isinstance(notice, notices.AllTerminal) for notice in told(finish(roster, simulation)))
    assert told(finish(roster, 2))[-1] == notices.AllTerminal(states={0: "finished", 1: "finished", 2: "finished"})


def test_a_redraw_takes_the_next_unused_id_and_its_parameters(roster: Roster) -> None:
    message = launcher_link.GaveUp(simulation=1, attempts=3, reason="exit code 1", log="output.log", redraw=True)
    actions = roster.gave_up(message)
    assert to_launcher(actions) == [launcher_link.AddSimulation(simulation=3, parameters={"x": 3.0})]
    assert not any(isinstance(notice, notices.AllTerminal) for notice in told(actions))
    assert roster.failures == [{"id": 1, "attempts": 3, "reason": "exit code 1", "log": "output.log"}]


def test_a_simulation_whose_last_attempt_failed_is_failing_until_it_is_tried_again(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.failed(0, 0, "exit code 1", "output.log")
    assert roster.failing == [{"id": 0, "attempts": 1, "reason": "exit code 1", "log": "output.log"}]
    roster.launched(begun(0, 1))
    assert roster.failing == []


def test_what_waits_for_another_attempt_is_told_from_what_was_never_tried(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.failed(0, 0, "exit code 1", "output.log")
    assert [end.reason for end in roster.ends.values()] == ["attempt 0 failed: exit code 1", "", ""]


def test_a_failure_after_the_last_time_step_is_remembered_and_changes_nothing(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    before = roster.table.counts()
    roster.fails_later(launcher_link.FailedLater(simulation=0, attempt=0, reason="exit code 1", log="output.log"))
    assert roster.failed_later == [{"id": 0, "attempts": 1, "reason": "exit code 1", "log": "output.log"}]
    assert (roster.table.counts(), roster.failing, roster.retried) == (before, [], [])
    assert roster.state_dict()["failed_later"] == roster.failed_later


def test_a_failure_that_another_attempt_followed_is_remembered(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.failed(0, 0, "exit code 1", "output.log")
    assert roster.retried == []
    roster.launched(begun(0, 1))
    failure = {"id": 0, "attempts": 1, "reason": "exit code 1", "log": "output.log"}
    assert roster.retried == [failure]
    assert roster.state_dict()["retried"] == [failure]


def test_the_reason_of_a_withdrawal_has_no_control_characters(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    roster.invalidate(b"p", Invalidate(study="s", simulation=0, attempt=0, reason="\x1b[2Jdiverged"))
    assert roster.ends[0].reason == "\\x1b[2Jdiverged"


def test_a_simulation_that_finished_is_not_given_up(roster: Roster) -> None:
    finish(roster, 1)
    message = launcher_link.GaveUp(simulation=1, attempts=1, reason="exit code 1", log="", redraw=False)
    assert roster.gave_up(message) == []
    assert roster.table.counts()["finished"] == 1


def test_a_client_that_attaches_gets_what_the_launcher_gives_it(roster: Roster) -> None:
    (request,) = to_launcher(roster.handshake.hello(b"p", hello(None, attempt=ATTACHING, parameters={"x": 9.0})))
    assert request == launcher_link.AttachRequest(token=0, simulation=None, client=b"p".hex())
    assert roster.handshake.hello(b"p", hello(None, attempt=ATTACHING)) == []
    (notice,) = told(roster.attached(0, 2, 0))
    assert roster.handshake.hello(b"p", hello(None, attempt=ATTACHING)) == []
    assert notice == notices.AttemptNotice(simulation=2, attempt=0, parameters={"x": 9.0}, key=None)
    (welcome,) = replies(roster.ready(2, 0))
    assert isinstance(welcome, Welcome)
    assert welcome.simulation == 2


def test_a_client_that_has_not_named_itself_has_no_name(roster: Roster) -> None:
    (request,) = to_launcher(roster.handshake.hello(b"\0abcd", hello(None, attempt=ATTACHING)))
    assert request == launcher_link.AttachRequest(token=0, simulation=None)


def test_it_is_told_what_is_awaited_when_nobody_runs_what_is_left(roster: Roster) -> None:
    assert roster.awaited == ""
    roster.starts_jobs = False
    assert roster.awaited == "somebody to attach for 3 simulations, since simulation.command starts none"
    roster.handshake.hello(b"p", hello(None, attempt=ATTACHING))
    roster.attached(0, 2, 0)
    assert roster.awaited == ""
    roster.failed(2, 0)
    roster.launched(begun(0, 3, attached=True, goes_on=True))
    finish(roster, 1)
    assert roster.awaited == (
        "clients that attached to simulation 0 before a restart, and have not come back; "
        "somebody to attach for 1 simulation, since simulation.command starts none"
    )
    roster.stop(launcher_link.StopSimulations(reason="stopped by SIGINT", grace_s=0.0))
    assert "simulation 0 before" in roster.awaited
    assert roster.table.counts()["stopped"] == 2


def test_nothing_is_awaited_from_a_client_that_came_back(roster: Roster) -> None:
    roster.launched(begun(0, 0, attached=True, goes_on=True))
    roster.launched(begun(1, 0, attached=True, goes_on=True))
    roster.share(0, share(0, received=1))
    assert roster.awaited == ""


def test_a_client_whose_question_crossed_the_answer_gets_no_second_simulation(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(None, attempt=ATTACHING))
    roster.attached(0, 2, 0)
    roster.ready(2, 0)
    actions = roster.handshake.hello(b"p", hello(None, attempt=ATTACHING))
    assert to_launcher(actions) == []
    (welcome,) = replies(actions)
    assert isinstance(welcome, Welcome)
    assert welcome.simulation == 2


def test_all_ranks_of_a_parallel_simulation_are_told_that_nothing_is_left(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(1, attempt=ATTACHING, num_ranks=2))
    roster.handshake.hello(b"q", hello(1, attempt=ATTACHING, num_ranks=2, rank=1))
    actions = roster.handshake.none_left(launcher_link.NoneLeft(token=0, text="none is left", busy=False))
    assert {action.peer for action in actions if isinstance(action, Reply)} == {b"p", b"q"}


def test_all_ranks_of_an_attaching_simulation_come_in_with_one_request(roster: Roster) -> None:
    first = roster.handshake.hello(b"p", hello(1, attempt=ATTACHING, num_ranks=2))
    assert to_launcher(first) == [launcher_link.AttachRequest(token=0, simulation=1, client=b"p".hex())]
    assert roster.handshake.hello(b"q", hello(1, attempt=ATTACHING, num_ranks=2, rank=1)) == []
    roster.attached(0, 1, 0)
    assert len(replies(roster.ready(1, 0))) == 2


def attaching(simulation: int | None, **others: object) -> Hello:
    return hello(simulation, attempt=ATTACHING, **others)


def given(roster: Roster, simulation: int, attempt: int = 0, *, token: int = 0) -> None:
    """The launcher gives a client that came by itself this simulation, and all ranks know of it."""
    roster.attached(token, simulation, attempt)
    roster.ready(simulation, attempt)


@pytest.mark.parametrize("asked_for", [1, None])
@pytest.mark.parametrize("is_given", [True, False])
def test_a_second_process_that_attaches_for_one_rank_is_refused_and_the_first_goes_on(
    roster: Roster, asked_for: int | None, is_given: bool
) -> None:
    roster.hello(b"p", attaching(asked_for))
    if is_given or asked_for is None:
        given(roster, 1)
    actions = roster.hello(b"q", attaching(1))
    [refusal] = replies(actions)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STALE_ATTEMPT
    assert "another process has attached for simulation 1 as rank 0 of 1" in refusal.text
    assert actions == [Reply(peer=b"q", message=refusal)]
    roster.hello(b"r", attaching(1, rank=1, num_ranks=2))
    given(roster, 1)
    assert [type(message) for message in replies(roster.hello(b"s", attaching(1, rank=1, num_ranks=2)))] == [Refusal]
    assert [type(message) for message in replies(roster.hello(b"p", attaching(1)))] == [Welcome]
    assert roster.table.counts()["running"] == 1


def test_another_process_may_attach_once_the_first_was_given_up_or_let_go(roster: Roster) -> None:
    wrong = attaching(1, parameters={"y": 1.0})
    assert [type(message) for message in replies(roster.hello(b"wrong", wrong))] == [Refusal]
    roster.hello(b"p", attaching(1))
    roster.handshake.none_left(launcher_link.NoneLeft(token=0, text="too many are attached", busy=True))
    roster.hello(b"q", attaching(1))
    given(roster, 1, token=1)
    roster.failed(1, 0, reason="sent no new time step for 600 s")
    roster.hello(b"r", attaching(1))
    roster.attached(2, 1, 1)
    assert [type(message) for message in replies(roster.ready(1, 1))] == [Welcome]
    finish(roster, 1, 1)
    [refusal] = replies(roster.hello(b"s", attaching(1)))
    assert isinstance(refusal, Refusal)
    assert "simulation 1 is finished already" in refusal.text


def test_a_client_for_which_nothing_is_left_is_told(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(None, attempt=ATTACHING))
    (refusal,) = replies(roster.handshake.none_left(launcher_link.NoneLeft(token=0, text="none is left", busy=False)))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NO_SIMULATION_LEFT


def test_a_simulation_that_invalidates_itself_is_not_tried_again(roster: Roster) -> None:
    roster.launched(begun(0, 0))
    actions = roster.invalidate(b"p", Invalidate(study="s", simulation=0, attempt=0, reason="diverged"))
    assert replies(actions) == [Invalidated(simulation=0)]
    assert told(actions) == [notices.Terminal(simulation=0, state="invalid", reason="diverged")]
    assert to_launcher(actions) == [launcher_link.Invalid(simulation=0, reason="diverged")]


def withdraw(roster: Roster, simulation: int) -> list[Action]:
    return roster.invalidate(b"p", Invalidate(study="s", simulation=simulation, attempt=0, reason="energy drifts"))


def test_a_finished_simulation_cannot_be_withdrawn_and_its_client_and_the_report_say_so(roster: Roster) -> None:
    finish(roster, 0)
    actions = withdraw(roster, 0)
    (refusal,) = replies(actions)
    assert isinstance(refusal, Refusal)
    assert "simulation 0 is finished already" in refusal.text
    assert "before it sends its last time step" in refusal.text
    (warning,) = roster.warnings.texts
    assert actions[1:] == [SimulationWarning(text=warning)]
    assert "simulation 0 could not be withdrawn" in warning
    assert "energy drifts" in warning
    # The other client ranks, and a client whose answer was lost.
    assert withdraw(roster, 0) == actions[:1]
    assert roster.table.counts()["finished"] == 1


def test_a_client_that_withdraws_what_was_stopped_early_is_told_of_that_and_the_report_has_its_reason(
    roster: Roster,
) -> None:
    roster.launched(begun(1))
    roster.end_early(ENOUGH)
    assert replies(withdraw(roster, 1)) == [Stop(text="teaches nothing")]
    assert "energy drifts" in roster.warnings.texts[0]


def test_only_the_first_warnings_of_a_kind_name_their_simulations() -> None:
    parameters = [{"x": float(i)} for i in range(7)]
    roster = Roster(FACTS, parameters, num_planned=7, num_held_out=0, num_ranks=2)
    for simulation in range(7):
        finish(roster, simulation)
        withdraw(roster, simulation)
    *named, others = roster.warnings.texts
    assert [text.split()[1] for text in named] == ["0", "1", "2", "3", "4"]
    assert others == "2 more times a simulation could not be withdrawn any more"


def test_an_attempt_that_repeats_a_time_step_is_named_once(roster: Roster) -> None:
    roster.launched(begun(1))
    again = replace(share(1, complete=False), repeated=1)
    (_, warning) = roster.share(0, again)
    assert isinstance(warning, SimulationWarning)
    assert warning.text.startswith("simulation 1, attempt 0 sent a time step more than once")
    for rank in range(2):
        assert SimulationWarning not in map(
            type, roster.share(rank, replace(again, repeated=3, complete=True, total=1))
        )
    assert roster.warnings.texts == [warning.text]


def test_an_attempt_on_another_trajectory_is_named_once(roster: Roster) -> None:
    roster.launched(begun(1))
    different = replace(share(1, complete=False), differs="time step 2: u[0] is 3.5, and was 3.0")
    (_, warning) = roster.share(0, different)
    assert isinstance(warning, SimulationWarning)
    assert warning.text.startswith(
        "simulation 1, attempt 0 sent other values than an earlier attempt of it, in time step 2: u[0] is 3.5"
    )
    for rank in range(2):
        assert SimulationWarning not in map(type, roster.share(rank, replace(different, complete=True)))
    assert roster.warnings.texts == [warning.text]


def test_a_simulation_that_finishes_early_is_named_with_what_it_sent(roster: Roster) -> None:
    finish(roster, 1)
    assert roster.warnings.texts == []
    roster.launched(begun(2))
    for rank in range(2):
        actions = roster.share(rank, share(2, received=1, total=2))
    (text,) = roster.warnings.texts
    assert text == "simulation 2 finished early: it sent 2 of the 4 steps of study.time_steps"
    assert actions[-1] == SimulationWarning(text=text)


ENOUGH = notices.EndEarly(simulation=1, reason="teaches nothing")


def test_a_simulation_that_is_stopped_early_is_neither_a_failure_nor_tried_again(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.handshake.hello(b"p", hello(1))
    actions = roster.end_early(ENOUGH)
    assert replies(actions) == [Stop(text="teaches nothing")]
    assert told(actions) == [notices.Terminal(simulation=1, state="stopped_early", reason="teaches nothing")]
    assert to_launcher(actions) == [launcher_link.Finished(simulation=1)]
    assert roster.end_early(ENOUGH) == []
    assert roster.failed(1, 0) == []
    for attempt in (0, 3, ATTACHING):
        assert replies(roster.handshake.hello(b"q", hello(1, attempt=attempt))) == [Stop(text="teaches nothing")]
    # Its program may end with an error, now that its client gets False.
    assert not roster.fails_later(launcher_link.FailedLater(simulation=1, attempt=0, reason="exit code 1", log=""))
    assert (roster.failures, roster.failed_later, roster.failed_simulations) == ([], [], [])
    assert roster.table.counts()["stopped_early"] == 1
    assert [it.simulation for it in roster.plan] == [0, 2]
    finish(roster, 0)
    assert any(isinstance(it, notices.AllTerminal) for it in told(finish(roster, 2)))


def test_one_that_waits_is_stopped_before_it_starts_and_a_held_out_one_never(roster: Roster) -> None:
    assert to_launcher(roster.end_early(ENOUGH)) == [launcher_link.Finished(simulation=1)]
    assert roster.launched(begun(1)) == []
    assert roster.end_early(notices.EndEarly(simulation=0, reason="held out")) == []
    assert roster.end_early(notices.EndEarly(simulation=99, reason="unknown")) == []


def test_a_client_that_is_given_a_simulation_which_was_stopped_meanwhile_asks_again(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(None, attempt=ATTACHING))
    roster.end_early(ENOUGH)
    (refusal,) = replies(roster.attached(0, 1, 0))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BUSY


def test_steps_that_came_before_a_rank_heard_of_an_early_stop_count(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.share(0, share(1, received=1, complete=False))
    roster.end_early(ENOUGH)
    assert roster.num_missing == 3
    roster.share(1, share(1, received=2, complete=False))
    assert (roster.num_missing, roster.table.num_settled) == (1, 3)


def test_an_early_stop_outlasts_the_server(roster: Roster) -> None:
    roster.launched(begun(1))
    roster.share(0, share(1, received=1, complete=False))
    roster.end_early(ENOUGH)
    later = Roster(FACTS, [{"x": float(i)} for i in range(4)], num_planned=3, num_held_out=1, num_ranks=2)
    later.load_state_dict(from_bytes(to_bytes(roster.state_dict())), {})
    assert [it.simulation for it in later.plan] == [0, 2]
    assert later.num_missing == 3
    assert replies(later.handshake.hello(b"p", hello(1))) == [Stop(text="teaches nothing")]
    assert later.ends[1].reason == "teaches nothing"


def test_after_a_stop_waiting_and_new_clients_are_told_that_the_study_has_ended(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(1))
    actions = roster.stop(launcher_link.StopSimulations(reason="max_batches", grace_s=1.0))
    assert [type(message) for message in replies(actions)] == [Stop]
    assert told(actions) == [notices.StopNotice(reason="max_batches")]
    assert [type(message) for message in replies(roster.handshake.hello(b"q", hello(2)))] == [Stop]
    assert roster.table.counts()["stopped"] == 3
    assert roster.stop(launcher_link.StopSimulations(reason="again", grace_s=1.0)) == []


def test_too_many_failures_fail_the_study(roster: Roster) -> None:
    assert roster.too_many("all fail") == [SimulationsFailed(text="all fail")]


def test_a_failed_attempt_is_over_on_every_rank_and_the_next_one_waits_for_its_own_readiness(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.ready(1, 0)
    assert told(roster.failed(1, 0)) == [notices.AttemptOver(simulation=1, attempt=0)]
    assert roster.failed(1, 0) == []
    assert roster.handshake.hello(b"p", hello(1, attempt=1)) == []
    roster.launched(begun(1, 1))
    assert [type(message) for message in replies(roster.ready(1, 1))] == [Welcome]


def test_a_client_of_a_failed_attempt_that_comes_late_is_refused(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.failed(1, 0)
    roster.handshake.hello(b"p", hello(1, attempt=0))
    roster.launched(begun(1, 1))
    (refusal,) = replies(roster.ready(1, 1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STALE_ATTEMPT


def test_a_client_that_asks_again_after_its_end_is_let_go_and_one_that_was_replaced_is_refused(roster: Roster) -> None:
    finish(roster, 1, attempt=1)
    roster.launched(begun(1, 1, goes_on=True))
    (answer,) = replies(roster.handshake.hello(b"p", hello(1, attempt=1)))
    assert answer == Stop(text="simulation 1 is finished")
    for attempt in (0, ATTACHING):
        (refusal,) = replies(roster.handshake.hello(b"q", hello(1, attempt=attempt)))
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.STALE_ATTEMPT


def test_a_client_that_attaches_cannot_take_over_what_the_study_runs_itself(roster: Roster) -> None:
    roster.launched(begun(1, 0, public_key="key"))
    roster.ready(1, 0)
    (refusal,) = replies(roster.handshake.hello(b"p", hello(1, attempt=ATTACHING)))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STALE_ATTEMPT


def test_parameters_that_a_client_brings_must_have_the_names_of_the_study(roster: Roster) -> None:
    (refusal,) = replies(roster.handshake.hello(b"p", hello(None, attempt=ATTACHING, parameters={"y": 9.0})))
    assert isinstance(refusal, Refusal)
    assert refusal.text == "the study has the parameters x, but these are y"


def test_a_simulation_keeps_the_parameters_that_it_was_begun_with(roster: Roster) -> None:
    """Its earlier samples are in the buffer, and must not be trained with the parameters of another one."""
    roster.handshake.hello(b"p", hello(1, attempt=ATTACHING, parameters={"x": 9.0}))
    roster.attached(0, 1, 0)
    roster.failed(1, 0)
    (refusal,) = replies(roster.handshake.hello(b"q", hello(1, attempt=ATTACHING, parameters={"x": 8.0})))
    assert isinstance(refusal, Refusal)
    (request,) = to_launcher(roster.handshake.hello(b"q", hello(1, attempt=ATTACHING, parameters={"x": 9.0})))
    assert request == launcher_link.AttachRequest(token=1, simulation=1, client=b"q".hex())


def test_a_client_of_which_the_last_checkpoint_knows_nothing_brings_its_parameters_once_more(roster: Roster) -> None:
    for simulation in (0, 1):
        roster.launched(begun(simulation, 3, attached=True, goes_on=True))
        roster.ready(simulation, 3)
    first = roster.handshake.hello(b"p", hello(0, attempt=ATTACHING, parameters={"x": 9.0}))
    expected = notices.AttemptNotice(simulation=0, attempt=3, parameters={"x": 9.0}, key=None, goes_on=True)
    assert (told(first), replies(first)) == ([expected], [])
    (welcome,) = replies(roster.ready(0, 3))
    assert isinstance(welcome, Welcome)
    assert welcome.parameters == {"x": 9.0}
    # One that has not heard which simulation it has.
    roster.handshake.hello(b"q", hello(None, attempt=ATTACHING, parameters={"x": 8.0}))
    (notice,) = told(roster.attached(0, 1, 3))
    assert notice == notices.AttemptNotice(simulation=1, attempt=3, parameters={"x": 8.0}, key=None, goes_on=True)
    assert len(replies(roster.ready(1, 3))) == 1
    (refusal,) = replies(roster.handshake.hello(b"r", hello(1, attempt=ATTACHING, parameters={"x": 7.0})))
    assert isinstance(refusal, Refusal)


def test_a_study_that_failed_does_not_come_to_its_end_any_more(roster: Roster) -> None:
    for simulation in (0, 1):
        finish(roster, simulation)
    roster.launched(begun(2, 0))
    assert roster.too_many("too many failed") == [SimulationsFailed(text="too many failed")]
    message = launcher_link.GaveUp(simulation=2, attempts=1, reason="exit code 1", log="", redraw=False)
    assert not any(isinstance(notice, notices.AllTerminal) for notice in told(roster.gave_up(message)))
    assert [failure["id"] for failure in roster.failures] == [2]


def test_the_number_of_steps_is_the_one_that_the_end_told(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.share(0, share(1, total=10))
    roster.share(1, share(1, total=7))
    assert roster.entries[1].num_steps == 7


def test_steps_that_will_never_come_are_those_of_training_simulations_that_ended_without_them(roster: Roster) -> None:
    """Simulation 0 is held out; each has four steps."""
    roster.gave_up(launcher_link.GaveUp(simulation=0, attempts=1, reason="exit code 1", log="", redraw=False))
    assert roster.num_missing == 0
    roster.launched(begun(1, 0))
    for rank in range(2):
        roster.share(rank, share(1, received=1, total=2))
    assert (roster.table.counts()["finished"], roster.num_missing) == (1, 2)
    roster.launched(begun(2, 0))
    roster.share(0, share(2, received=3, complete=False))
    assert roster.num_missing == 2
    roster.gave_up(launcher_link.GaveUp(simulation=2, attempts=1, reason="exit code 1", log="", redraw=False))
    assert roster.num_missing == 3


def test_a_redraw_brings_more_than_the_one_whose_place_it_takes_had_left(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.share(0, share(1, received=3, complete=False))
    roster.gave_up(launcher_link.GaveUp(simulation=1, attempts=1, reason="exit code 1", log="", redraw=True))
    assert roster.num_missing == 4 - 3 - 4


def test_a_held_out_simulation_is_not_redrawn(roster: Roster) -> None:
    message = launcher_link.GaveUp(simulation=0, attempts=3, reason="exit code 1", log="", redraw=True)
    assert to_launcher(roster.gave_up(message)) == []
    assert roster.table.counts()["given_up"] == 1


def test_the_client_of_a_new_attempt_may_come_before_the_word_of_the_launcher(roster: Roster) -> None:
    roster.launched(begun(1, 0))
    roster.ready(1, 0)
    assert replies(roster.handshake.hello(b"p", hello(1, attempt=1))) == []
    roster.failed(1, 0)
    roster.launched(begun(1, 1))
    assert [type(message) for message in replies(roster.ready(1, 1))] == [Welcome]


def test_simulations_that_are_not_started_any_more_are_over_and_their_steps_missing(roster: Roster) -> None:
    roster.handshake.hello(b"p", hello(2))
    finish(roster, 0)
    finish(roster, 1)
    actions = roster.dropped(launcher_link.Dropped(simulations=(2, 99), reason="enough"))
    assert [type(message) for message in replies(actions)] == [Refusal]
    assert isinstance(told(actions)[-1], notices.AllTerminal)
    assert roster.num_missing == 4
    assert (roster.ends[2].state, roster.ends[2].reason) == ("stopped", "enough")
    assert roster.dropped(launcher_link.Dropped(simulations=(2,), reason="enough"))[:-1] == []


def test_what_was_not_started_is_still_to_come_for_a_later_start(roster: Roster) -> None:
    roster.dropped(launcher_link.Dropped(simulations=(2,), reason="enough"))
    later = Roster(FACTS, [{"x": float(i)} for i in range(4)], num_planned=3, num_held_out=1, num_ranks=2)
    later.load_state_dict(roster.state_dict(), {})
    assert later.table.counts()["waiting"] == 3
    assert later.finish_order is None


def test_what_was_started_and_waits_in_a_queue_does_not_run_until_the_launcher_or_its_client_says_so(
    roster: Roster,
) -> None:
    for simulation in range(3):
        roster.launched(begun(simulation, waits_for="its worker has others before it" if simulation == 2 else None))
    roster.queued(launcher_link.Queued(simulations=(0, 1), waits_for="Priority"))
    assert (roster.table.counts()["queued"], roster.table.counts()["running"]) == (3, 0)
    assert roster.table.queue() == {"Priority": 2, "its worker has others before it": 1}
    roster.queued(launcher_link.Queued(simulations=(0,), waits_for=None))
    roster.handshake.hello(b"peer", hello(2))
    assert roster.table.queue() == {"Priority": 1}
    roster.failed(1, 0, "was cancelled")
    assert (roster.table.counts()["queued"], roster.table.counts()["running"], roster.table.counts()["waiting"]) == (
        0,
        2,
        1,
    )
    roster.launched(begun(1, 1))
    assert roster.table.counts()["queued"] == 0
