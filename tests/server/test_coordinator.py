"""What rank 0 tells the launcher, and when."""

from typing import Any

from stream_server.client_api.messages import Away, Routing, TimeSteps
from stream_server.launcher import link
from stream_server.server.coordinator import Coordinator
from stream_server.server.lobby import StudyFacts
from stream_server.server.roster import Roster


def ignore(*_: Any) -> None:
    """Nothing of this is of interest here."""


def coordinator(told: list[link.ToLauncher]) -> Coordinator:
    facts = StudyFacts(
        study="study-1",
        epoch=1,
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
        access=None,
        refuse=ignore,  # type: ignore[arg-type]
        reply=ignore,
        tell_launcher=told.append,
        tell_main=ignore,
        apply=ignore,
    )


def test_a_launcher_that_asks_before_there_is_a_plan_is_told_once_there_is_one() -> None:
    told: list[link.ToLauncher] = []
    rank_0 = coordinator(told)
    rank_0.launcher(link.AskPlan())
    assert told == []
    rank_0.begin(link.Plan(study="study-1", epoch=1, output_dir="", connection={}, simulations=()))
    (plan,) = told
    assert isinstance(plan, link.Plan)
    assert [planned.simulation for planned in plan.simulations] == [0]
