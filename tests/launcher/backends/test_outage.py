"""The news of a scheduler that does not answer, and when they are told."""

import subprocess

import pytest

from stream_server.launcher.backends.backend import FIRST_S, Outage
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import Ensemble
from stream_server.messages.launcher_link import HeldBack
from tests.fakes.one_rank import OneRank
from tests.launcher.node import Node, NodeAttempts, NodeBackend, NodeJournal, NodeLink

JOBS = "nothing is known of the jobs"
AWAY = OSError("no route")


class HandClock:
    """A clock that the test winds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def outage(clock: HandClock) -> Outage:
    return Outage(clock)


def told(outage: Outage, clock: HandClock, seconds: int) -> list[str]:
    """The news while a question is asked once a second and has no answer."""
    lines = []
    for _ in range(seconds):
        outage.unanswered(JOBS, AWAY)
        lines.append(outage.news())
        clock.now += 1.0
    return [line for line in lines if line]


def test_an_outage_is_told_once_with_its_duration(outage: Outage, clock: HandClock) -> None:
    assert told(outage, clock, 3600) == [f"no answer for 5 s: {JOBS} (no route); what runs goes on"]


def test_the_end_of_an_outage_is_told_once(outage: Outage, clock: HandClock) -> None:
    told(outage, clock, 60)
    with outage.within(JOBS):
        pass
    assert outage.news() == "there are answers again, after 60 s"
    assert outage.news() == ""


def test_an_answer_that_is_missing_for_a_moment_is_not_told(outage: Outage, clock: HandClock) -> None:
    assert told(outage, clock, int(FIRST_S)) == []
    outage.answered(JOBS)
    assert outage.news() == ""


def test_an_outage_lasts_until_each_question_is_answered(outage: Outage, clock: HandClock) -> None:
    with outage.within("jobs cannot be cancelled yet"):
        raise subprocess.CalledProcessError(1, "qdel", stderr="server is down\n")
    outage.unanswered(JOBS, AWAY)
    clock.now += FIRST_S
    assert (
        outage.news()
        == "no answer for 5 s: jobs cannot be cancelled yet (server is down), and 1 more; what runs goes on"
    )
    outage.answered("jobs cannot be cancelled yet")
    clock.now += FIRST_S
    assert outage.news() == ""
    outage.answered(JOBS)
    assert outage.news() == "there are answers again, after 10 s"


def test_an_outage_is_told_once_more_to_a_new_server(outage: Outage, clock: HandClock) -> None:
    outage.repeat()
    assert len(told(outage, clock, 8)) == 1
    outage.repeat()
    assert outage.news().startswith("no answer for 8 s")


def test_rank_0_shows_that_the_scheduler_does_not_answer_and_that_it_does_again() -> None:
    node = Node(max_running=1, per_job=1)
    jobs = AttemptJobs(NodeBackend(node), NodeAttempts(node), None, Outage(lambda: node.now))  # type: ignore[arg-type]
    with node.inhabited():
        node.server = server = OneRank(incarnation=1, num_simulations=1, num_spare=0, checkpoint=None)
        ensemble = Ensemble(
            schedule=SimulationSchedule(ScheduleLimits(num_simulations=1)),
            jobs=jobs,
            server=NodeLink(node),  # type: ignore[arg-type]
            journal=NodeJournal(node),
            keep_finished=True,
        )
        ensemble.turn()
        server.listen()
        ensemble.turn()
        for second in range(60):
            node.unanswered = frozenset({"query"} if second < 59 else set())
            node.now += 1.0
            ensemble.turn()
    shown = [message.text for message in server.from_launcher if isinstance(message, HeldBack)]
    assert [text.partition(":")[0] for text in shown] == [
        "no answer for 5 s",
        "there are answers again, after 59 s",
    ]
