"""The messages of rank 0 to the launcher, and their times."""

from collections.abc import Callable
from typing import Any

from stream_server.messages import launcher_link, operator
from stream_server.messages.client import Away, Routing, TimeSteps
from stream_server.messages.curve import KeyPair
from stream_server.server.intake import mailbox
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.coordinator import MOST_UNANSWERED, Coordinator
from stream_server.server.reception.operator_desk import STOP_TEXT
from stream_server.server.simulations.handshake import StudyFacts
from stream_server.server.simulations.roster import Roster
from tests.support.connections import NOWHERE


def ignore(*_: Any) -> None:
    """Nothing of this is of interest here."""


def coordinator(
    told: list[launcher_link.ToLauncher], tell_main: Callable[[mailbox.Event], None] = ignore
) -> Coordinator:
    facts = StudyFacts(
        study="study-1",
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
    return Coordinator(
        roster,
        {},
        access=CurveAccess(KeyPair.make()),
        refuse=ignore,  # type: ignore[arg-type]
        reply=ignore,
        answer=ignore,
        tell_launcher=told.append,
        tell_main=tell_main,
        apply=ignore,
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
