"""How many lines, each of which is one fsync, the launcher writes for what one turn decides."""

from stream_server.launcher.backends.backend import JobSpec, Outage
from stream_server.launcher.journal import records
from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.ensemble import Ensemble
from tests.fakes.one_rank import NUM_STEPS, OneRank
from tests.launcher.node import Node, NodeAttempts, NodeBackend, NodeJournal, NodeLink

NUM = 3


class NotingBackend(NodeBackend):
    """Notes what was on disk when each job was submitted."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.on_disk: list[bytes] = []

    def submit(self, spec: JobSpec) -> str:
        self.on_disk.append(self.node.journal)
        return super().submit(spec)


def lines_of(journal: bytes) -> list[list[str]]:
    """The kinds of the records of each line."""
    return [[type(record).__name__ for record in records.decode(line)] for line in journal.splitlines(keepends=True)]


def test_what_a_turn_starts_and_sees_end_is_one_line_each() -> None:
    node = Node(max_running=NUM, per_job=1)
    limits = ScheduleLimits(max_running=NUM, num_simulations=NUM)
    backend = NotingBackend(node)
    with node.inhabited():
        node.server = server = OneRank(incarnation=1, num_simulations=NUM, num_spare=0, checkpoint=None)
        ensemble = Ensemble(
            schedule=SimulationSchedule(limits),
            jobs=AttemptJobs(backend, NodeAttempts(node), None, Outage()),  # type: ignore[arg-type]
            server=NodeLink(node),  # type: ignore[arg-type]
            journal=NodeJournal(node),
            keep_finished=True,
        )
        ensemble.turn()
        server.listen()
        ensemble.turn()
        starting, started = ["AttemptStarting"] * NUM, ["AttemptStarted"] * NUM
        assert lines_of(node.journal) == [["PlanTaken"], starting, started]
        assert [lines_of(it) for it in backend.on_disk] == [[["PlanTaken"], starting]] * NUM
        server.listen()
        for process in node.alive:
            for index in range(NUM_STEPS):
                server.take_step(process.simulation, process.attempt, index)
        for process in node.alive:
            node.end_process(process, 0)
        node.now += 10
        written = len(node.journal)
        ensemble.turn()
        assert lines_of(node.journal[written:]) == [["FirstStep"], ["AttemptEnded"] * NUM]
