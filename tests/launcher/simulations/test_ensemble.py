"""Turns of the launcher with one simulation, which fails, is tried again, and finishes."""

from collections.abc import Iterator

import pytest

from stream_server.launcher.backends.backend import Outage
from stream_server.launcher.journal import records
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import ScheduledState
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import Ensemble
from tests.fakes.one_rank import NUM_STEPS, OneRank
from tests.launcher.node import Node, NodeAttempts, NodeBackend, NodeJournal, NodeLink, Process


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node(max_running=1, per_job=1)
    node.server = OneRank(incarnation=1, num_simulations=1, num_spare=0, checkpoint=None)
    with node.inhabited():
        yield node


@pytest.fixture
def ensemble(node: Node) -> Ensemble:
    return Ensemble(
        schedule=SimulationSchedule(ScheduleLimits(num_simulations=1, max_running=1, retries=1)),
        jobs=AttemptJobs(NodeBackend(node), NodeAttempts(node), None, Outage()),  # type: ignore[arg-type]
        server=NodeLink(node),  # type: ignore[arg-type]
        journal=NodeJournal(node),
        keep_finished=True,
    )


def running(node: Node, ensemble: Ensemble, attempt: int) -> Process:
    """The process of this attempt, once it runs and the server knows it."""
    assert node.server is not None
    for _ in range(60):
        node.now += 1.0
        node.server.say_here()
        ensemble.turn()
        node.server.listen()
        if any(it.attempt == attempt for it in node.alive):
            break
    [process] = node.alive
    assert process.attempt == attempt
    return process


def num_ends(node: Node) -> int:
    return sum(isinstance(it, records.AttemptEnded) for it in records.decode(node.journal))


def test_the_end_of_an_attempt_is_recorded_as_final_only_if_no_other_one_follows(
    node: Node, ensemble: Ensemble
) -> None:
    node.end_process(running(node, ensemble, 0), 1)
    last = running(node, ensemble, 1)
    ensemble.journal.flush()
    assert num_ends(node) == 0
    assert node.server is not None
    for step in range(NUM_STEPS):
        node.server.take_step(0, 1, step)
    ensemble.turn()
    assert ensemble.schedule.state(0) is ScheduledState.FINISHED
    node.end_process(last, 0)
    for _ in range(5):
        node.now += 1.0
        ensemble.turn()
    ensemble.journal.flush()
    assert num_ends(node) == 1


def test_an_attempt_that_cannot_be_prepared_has_failed_and_is_followed_by_another_one(
    node: Node, ensemble: Ensemble
) -> None:
    node.unpreparable.add(0)
    assert running(node, ensemble, 1).simulation == 0
    assert node.num_counted == {0: 1}
