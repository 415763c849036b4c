"""The word of the launcher to its jobs while the next server is on its way."""

from stream_server.launcher.backends.backend import Outage
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import KEEP_WAITING_S, Ensemble
from tests.fakes.one_rank import OneRank
from tests.launcher.node import Node, NodeAttempts, NodeBackend, NodeJournal, NodeLink


def test_jobs_are_told_to_wait_until_the_next_server_is_there_or_the_study_ends() -> None:
    node = Node(max_running=2, per_job=1)
    with node.inhabited():
        ensemble = Ensemble(
            schedule=SimulationSchedule(ScheduleLimits(num_simulations=2, max_running=2)),
            jobs=AttemptJobs(NodeBackend(node), NodeAttempts(node), None, Outage()),  # type: ignore[arg-type]
            server=NodeLink(node),  # type: ignore[arg-type]
            journal=NodeJournal(node),
            keep_finished=True,
        )

        def turns(seconds: float) -> dict[tuple[int, int], int]:
            node.touched.clear()
            for _ in range(int(seconds)):
                ensemble.turn()
                node.now += 1.0
            return dict(node.touched)

        node.server = OneRank(incarnation=1, num_simulations=2, num_spare=0, checkpoint=None)
        turns(2)
        node.server.listen()
        assert turns(2 * KEEP_WAITING_S) == {}
        node.server = None
        ensemble.server_is_gone()
        assert turns(2 * KEEP_WAITING_S) == {(0, 0): 2, (1, 0): 2}
        node.server = OneRank(incarnation=2, num_simulations=2, num_spare=0, checkpoint=None)
        turns(2)
        node.server.listen()
        assert turns(2 * KEEP_WAITING_S) == {}
        node.server = None
        ensemble.server_is_gone()
        ensemble.leave("the time limit is near", grace_s=1000)
        assert turns(2 * KEEP_WAITING_S) == {}
