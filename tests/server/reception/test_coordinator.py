"""The messages of rank 0 to the launcher, and their times."""

from collections.abc import Callable
from typing import Any

import pytest

from stream_server.messages import launcher_link, operator, wire
from stream_server.messages.client import ATTACHING, Away, Hello, Reason, Routing, TimeSteps, Welcome
from stream_server.messages.curve import KeyPair
from stream_server.server.intake import mailbox
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.coordinator import MOST_UNANSWERED, Coordinator
from stream_server.server.reception.operator_desk import STOP_TEXT
from stream_server.server.simulations.roster import Roster
from tests.support.connections import NOWHERE


def ignore(*_: Any) -> None:
    """Nothing of this is of interest here."""


def coordinator(
    told: list[launcher_link.ToLauncher], tell_main: Callable[[mailbox.Event], None] = ignore, **calls: Any
) -> Coordinator:
    facts = Welcome(
        study="study-1",
        simulation=0,
        attempt=0,
        parameters={},
        incarnation=1,
        endpoints=(("ipc:///nowhere",),),
        time_steps=TimeSteps(num=6),
        fields=(),
        routing=Routing.STEPS,
        window_bytes=2**20,
        if_server_away=Away.WAIT,
        wait_s=600.0,
    )
    roster = Roster(facts, [{"x": 1.0}], num_planned=1, num_held_out=0, num_ranks=1)
    others = dict.fromkeys(("refuse", "reply", "answer", "apply"), ignore)
    return Coordinator(
        roster,
        {},
        access=CurveAccess(KeyPair.make()),
        tell_launcher=told.append,
        tell_main=tell_main,
        **(others | calls),
    )


def test_a_launcher_that_asks_before_there_is_a_plan_is_told_once_there_is_one() -> None:
    told: list[launcher_link.ToLauncher] = []
    rank_0 = coordinator(told)
    rank_0.launcher(launcher_link.AskPlan())
    assert told == []
    rank_0.begin(launcher_link.Plan(study="study-1", incarnation=1, output_dir="", connection=NOWHERE, simulations=()))
    (plan,) = told
    assert isinstance(plan, launcher_link.Plan)
    assert [planned.simulation for planned in plan.simulations] == [0]


def test_a_launcher_that_asks_for_the_plan_hears_again_that_an_operator_has_stopped_the_study() -> None:
    told: list[launcher_link.ToLauncher] = []
    rank_0 = coordinator(told)
    rank_0.begin(launcher_link.Plan(study="study-1", incarnation=1, output_dir="", connection=NOWHERE, simulations=()))
    rank_0.desk.hear(operator.encode(operator.AskStop(finish=False)))
    stopping = launcher_link.Stopping(reason=STOP_TEXT)
    assert told[1:] == [stopping]
    rank_0.launcher(launcher_link.AskPlan())
    assert told[2:] == [told[0], stopping]


def test_the_main_thread_hears_once_that_the_launcher_is_silent_and_once_that_it_is_there_again() -> None:
    told: list[launcher_link.ToLauncher] = []
    happened: list[mailbox.Event] = []
    rank_0 = coordinator(told, happened.append)
    for _ in range(MOST_UNANSWERED - 1):
        rank_0.say_here()
    rank_0.launcher(launcher_link.AskPlan())
    assert happened == []
    assert told == [launcher_link.Rank0Alive(incarnation=1)] * (MOST_UNANSWERED - 1)
    for _ in range(2 * MOST_UNANSWERED):
        rank_0.say_here()
    assert happened == [mailbox.LauncherSilence(is_over=False)]
    rank_0.launcher(launcher_link.AskPlan())
    rank_0.launcher(launcher_link.AskPlan())
    assert happened[1:] == [mailbox.LauncherSilence(is_over=True)]


def begun(*, tell_main: Callable[[mailbox.Event], None] = ignore, **calls: Any) -> Coordinator:
    rank_0 = coordinator([], tell_main, **calls)
    rank_0.begin(launcher_link.Plan(study="study-1", incarnation=1, output_dir="", connection=NOWHERE, simulations=()))
    return rank_0


def test_parameters_are_asked_for_at_the_beginning_and_whenever_the_launcher_has_spoken() -> None:
    wanted: list[int] = []
    rank_0 = begun(want_parameters=wanted.append)
    assert wanted == [0]
    rank_0.launcher(launcher_link.AskPlan())
    assert wanted == [0, 0]


def test_a_client_whose_key_speaks_for_another_attempt_is_refused() -> None:
    replies: list[tuple[bytes, Any]] = []
    rank_0 = begun(refuse=lambda reason, text: (reason, text), reply=lambda *it: replies.append(it))
    hello = Hello(study="study-1", simulation=0, attempt=0, rank=0, num_ranks=1)
    rank_0.hear(b"peer", wire.encode(hello)[0], "a key")
    assert replies == [(b"peer", (Reason.WRONG_KEY, "this key does not speak for simulation 0, attempt 0"))]


def test_a_client_of_an_attempt_that_every_rank_knows_is_welcome() -> None:
    applied, replies = [], []
    rank_0 = begun(apply=applied.append, reply=lambda peer, message: replies.append(message))
    rank_0.launcher(launcher_link.Attempt(simulation=0, attempt=0, public_key=None))
    assert len(applied) == 1
    rank_0.hear(b"peer", wire.encode(Hello(study="study-1", simulation=0, attempt=0, rank=0, num_ranks=1))[0], None)
    assert [type(it) for it in replies] == [Welcome]


def test_a_failure_after_all_time_steps_is_told_to_the_main_thread() -> None:
    happened: list[mailbox.Event] = []
    later = launcher_link.FailedLater(simulation=0, attempt=0, reason="ended with exit code 1", log="output.log")
    begun(tell_main=happened.append).launcher(later)
    assert happened == [mailbox.FromLauncher(message=later)]


def test_of_what_the_roster_decides_the_main_thread_hears_what_is_for_it_and_the_launcher_the_rest() -> None:
    told: list[launcher_link.ToLauncher] = []
    happened: list[mailbox.Event] = []
    stop = launcher_link.StopSimulations(reason="the study is over", grace_s=5.0)
    warning = mailbox.SimulationWarning(text="simulation 0 sends nothing")
    coordinator(told, happened.append).perform([stop, warning])
    assert (told, happened) == ([stop], [warning])


def test_the_clients_of_an_attempt_are_welcomed_once_however_often_ranks_confirm_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank_0 = begun()
    ready: list[tuple[int, int]] = []
    monkeypatch.setattr(rank_0.roster, "ready", lambda *attempt: ready.append(attempt) or [])
    rank_0.launcher(launcher_link.Attempt(simulation=0, attempt=0, public_key=None))
    rank_0.heard()
    assert ready == [(0, 0)]


def test_a_client_that_attaches_by_itself_is_welcome_when_the_launcher_has_an_attempt_for_it() -> None:
    told: list[launcher_link.ToLauncher] = []
    replies: list[Any] = []
    rank_0 = coordinator(told, reply=lambda peer, message: replies.append(message))
    rank_0.begin(launcher_link.Plan(study="study-1", incarnation=1, output_dir="", connection=NOWHERE, simulations=()))
    hello = Hello(study="study-1", simulation=None, attempt=ATTACHING, rank=0, num_ranks=1)
    rank_0.hear(b"peer", wire.encode(hello)[0], None)
    asked = told[-1]
    assert isinstance(asked, launcher_link.AttachRequest)
    rank_0.launcher(launcher_link.Attached(token=asked.token, simulation=0, attempt=0))
    rank_0.launcher(launcher_link.Attempt(simulation=0, attempt=0, public_key=None, attached=True))
    # That the answer follows, and the answer.
    assert [getattr(it, "reason", None) for it in replies] == [Reason.BUSY, None]


def test_other_word_of_the_launcher_goes_to_the_main_thread() -> None:
    happened: list[mailbox.Event] = []
    held_back = launcher_link.HeldBack(text="no simulation is started as long as the disk refuses")
    begun(tell_main=happened.append).launcher(held_back)
    assert happened == [mailbox.FromLauncher(message=held_back)]
