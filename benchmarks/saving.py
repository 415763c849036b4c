"""A training from a full buffer that takes checkpoints, as their benchmarks need it.

    python -m benchmarks.saving

prints by how many bytes a process grows while it saves: a Reservoir that is full, from which the training draws and
into which seven simulations send as fast as they can. It is the first checkpoint of the process; its peak is compared
to that of the training before it.
"""

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.reception import HELD_SAMPLES, Reception, reception
from benchmarks.sender import sender
from stream_server import StreamServer
from stream_server.buffers import Reservoir
from stream_server.client_api.data_connection import MESSAGE_BYTES
from stream_server.server.checkpoint.agreement import CheckpointAgreement
from stream_server.server.checkpoint.capture import StudyCapture
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.incarnations import begin_incarnation
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.intake.mailbox import CheckpointCommitted
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.reception.receiver import Receiver
from stream_server.server.training.control_round import agree, in_lockstep
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import framework_of
from stream_server.storage.folders import PendingFile
from tests.support.checkpoint_stores import names
from tests.support.settings import settings

# On the disk of the project, since that of temporary files may be none.
DISK = Path(__file__).parents[1] / "runs"
SAMPLE_BYTES = 40_000
BATCH_SIZE = 10
NUM_SIMULATIONS = 8
NUM_PARAMETERS = 5
INCARNATION = 1
NUM_KEPT = 2
BUFFER_BYTES = 256 * 2**20


class Learner(StreamServer):
    """A step of some milliseconds on one core, without a model."""

    def process_batch(self, batch: Any, config: Any) -> Any:
        return batch.fields["field"]

    def training_step(self, batch: Any, batch_idx: int) -> float:
        return float(sum(np.sqrt(batch).sum() for _ in range(5)))


class Received:
    """The part of a source of samples that the snapshots need."""

    has_pressure = False

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    @property
    def num_received(self) -> int:
        return self._receiver.num_received

    def snapshot(self) -> ReceptionSnapshot:
        return self._receiver.snapshot()

    def committed(self, snapshot: ReceptionSnapshot, checkpoint: int, batches: int) -> None:
        marks = snapshot.received_marks
        self._receiver.post(CheckpointCommitted(received_marks=marks, checkpoint=checkpoint, batches=batches))


class TimedSnapshots(StudyCapture):
    """Notes how long the training stands still for each."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.capture_s: list[float] = []

    def capture(self) -> list[PendingFile]:
        start_s = time.perf_counter()
        parts = super().capture()
        self.capture_s.append(time.perf_counter() - start_s)
        return parts


class Saving:
    """A training that takes a checkpoint when it is told to. `folder` is where they are."""

    def __init__(self, stack: ExitStack, study: Reception, server_class: type[StreamServer] = Learner) -> None:
        DISK.mkdir(exist_ok=True)
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-", dir=DISK)))
        self.folder = root / "checkpoints"
        begin_incarnation(self.folder, base=0, batches=0, ranks=1, started="now")
        ranks = self._ranks = SoloRanks()
        config, phases = _config(), Phases()
        self._progress = Progress()
        server = server_class(config)
        server.enter_study(ranks, [f"p{i}" for i in range(NUM_PARAMETERS)])
        server.hold_attributes(
            progress=self._progress,
            buffer=study.buffer,
            output_dir=root,
            _metrics=Metrics(ranks),
            _stops=StopRequests(),
            phases=phases,
        )
        self._step = stack.enter_context(framework_of(server).make_step(server, ranks))
        stream = BatchStream(
            study.buffer,
            server,
            parameters_of=lambda simulation: np.full(NUM_PARAMETERS, simulation, np.float64),
            batch_size=BATCH_SIZE,
            phases=phases,
        )
        self.snapshots = TimedSnapshots(
            config=config,
            ranks=ranks,
            incarnation=INCARNATION,
            base=0,
            source=Received(study.receiver),
            buffer=study.buffer,
            stream=stream,
            server=server,
            step=self._step,
            progress=self._progress,
            callbacks=Callbacks(None),
            threads=[1],
            wall_s=lambda: 0.0,
            parts={"stream": stream},
        )
        checkpoints = CheckpointFolder(self.folder, keep=NUM_KEPT)
        saver = stack.enter_context(Saver(checkpoints, incarnation=INCARNATION, rank=0))
        self._wanted = Progress()
        self._checkpoints = CheckpointAgreement(
            ranks=ranks,
            saver=saver,
            study=self.snapshots,
            newest=0,
            schedule=Schedule(every=1),
            every_s=math.inf,
            progress=self._wanted,
            at_boundary=lambda: True,
            phases=phases,
        )
        self._union_batches = in_lockstep(
            stream,
            ranks,
            StopRequests(),
            phases=phases,
            saves=self._checkpoints,
            each_round=lambda: self._checkpoints.on_round(server),
        )

    @property
    def newest_bytes(self) -> int:
        """The size of the newest checkpoint."""
        newest = max(self.folder.glob("[0-9]*"))
        return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint that was wanted is not committed yet, or old ones are still being removed."""
        assert not self._checkpoints.counts.failed
        return self._checkpoints.counts.committed < self._wanted.batches or len(names(self.folder)) > NUM_KEPT

    def want(self) -> None:
        """Have a checkpoint taken in the next round."""
        self._wanted.batches += 1

    def look(self) -> None:
        """A round without a batch: take a checkpoint that is wanted, and see how the one under way fares."""
        self._checkpoints.advance(agree(self._ranks, self._checkpoints.state()))
        self._checkpoints.on_round(None)

    def train(self, num_batches: int) -> None:
        """Train on so many batches."""
        for union_batch in itertools.islice(self._union_batches, num_batches):
            assert union_batch.own is not None
            outcome = self._step.run(union_batch, self._step.to_device(union_batch.own.data), self._progress.batches)
            self._progress.count_batch(union_batch)
            self._progress.count_update(outcome)

    def save(self) -> int:
        """Take a checkpoint, and train until it is committed and old ones are removed; gives the number of batches."""
        num_batches = 0
        self.want()
        while self.is_busy:
            self.train(1)
            num_batches += 1
        return num_batches

    def write_s(self) -> float:
        """Seconds from the capture of a checkpoint to its commit, while nothing is trained."""
        while self.is_busy:
            time.sleep(0.001)
        self._wanted.batches += 1
        start_s = time.perf_counter()
        assert self._checkpoints.take_last()
        return time.perf_counter() - start_s


@contextmanager
def filled() -> Iterator[Reception]:
    """A Reservoir that is full; its windows are empty. All of its slots but the spare ones have BUFFER_BYTES."""
    # As make_plan has it: all windows together take at most an eighth of the capacity; as many slots are spare.
    capacity = (BUFFER_BYTES // SAMPLE_BYTES - HELD_SAMPLES) * 8 // 9
    with reception(
        Reservoir(capacity=capacity, watermark=BATCH_SIZE, seed=1),
        sample_bytes=SAMPLE_BYTES,
        credit=capacity // (8 * NUM_SIMULATIONS),
        num_simulations=NUM_SIMULATIONS,
        spare=-(-capacity // 8),
    ) as study:
        with sender("client", study.write_connection(), SAMPLE_BYTES) as send:
            # A client keeps what would not fill a message.
            send(capacity + MESSAGE_BYTES // SAMPLE_BYTES)
            study.wait_until(lambda: study.buffer.population == capacity)
        yield study


def grow() -> None:
    """In a process of its own: print by how much it grows."""
    with ExitStack() as stack:
        study = stack.enter_context(filled())
        saving = Saving(stack, study)
        senders = [
            stack.enter_context(sender("client", study.write_connection(simulation), SAMPLE_BYTES))
            for simulation in range(1, NUM_SIMULATIONS)
        ]

        def receive() -> None:
            for send in senders:
                send(1000 * study.buffer.capacity)
            saving.train(3 * study.buffer.capacity // BATCH_SIZE)

        without = _peak_bytes(receive)
        print(_peak_bytes(saving.save) - without, flush=True)


def _peak_bytes(work: Callable[[], object]) -> int:
    """The most that is resident during some work."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    work()
    return _resident_bytes("VmHWM")


def _resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _config() -> Any:
    return SimpleNamespace(
        **vars(settings(precision="32-true")),
        resolved=dict,
        study_dir=Path(),
    )


if __name__ == "__main__":
    grow()
