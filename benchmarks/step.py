"""The cost of our training loop, against a bare torch loop.

Both train the heat study's network at its published small scale (batches of 10 samples of 40 kB) on one thread, and
count batches per second of CPU time. Ours is the whole way from a full Reservoir: draw, gather, transform, control
round, step, finite check, counters, log. The reference holds the same samples as two tensors and does what a training
from memory does at its least: take random rows, forward, backward, update. `step.small` is the same for a linear layer
and batches of one sample of eight numbers, so that the fixed cost of a batch is what the two differ by. `step.compiled`
is our loop with `training.compile`, against our loop without it.

    python -m benchmarks.step
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.measure import Result, alternated, show
from stream_server import StreamServer, TorchServer
from stream_server.buffers import Buffer, Reservoir, Slots
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.control_round import NoSaves, Stream
from stream_server.server.training.loop import Training, TrainingLimits
from stream_server.server.training.monitoring.gauges import BufferGauge, Logging, SpeedGauge, log_schedule
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import framework_of
from tests.support.settings import settings

NUM_PARAMETERS = 5
NUM_NODES = 10_000
BATCH_SIZE = 10
CAPACITY = 2_500
BATCHES_PER_ROUND = 60
SMALL_NODES = 8
SMALL_BATCHES_PER_ROUND = 600
NUM_PAIRS = 21


def results() -> Iterator[Result]:
    """step.overhead, step.small and step.compiled."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as stack:
            ours, bare = Ours(stack), Bare()
            yield alternated("step.overhead", "batches/s", ours.one_round, bare.one_round, num_pairs=NUM_PAIRS)
            options: dict[str, Any] = {"batch_size": 1, "num_batches": SMALL_BATCHES_PER_ROUND}
            small, small_bare = Ours(stack, Small, buffer=filled_buffer(SMALL_NODES), **options), SmallBare()
            yield alternated("step.small", "batches/s", small.one_round, small_bare.one_round, num_pairs=NUM_PAIRS)
            compiled = Ours(stack, compile=True)
            yield alternated("step.compiled", "batches/s", compiled.one_round, ours.one_round, num_pairs=NUM_PAIRS)
    finally:
        torch.set_num_threads(threads)


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The heat study's network, for a grid of 100 × 100."""
    model = nn.Sequential(
        nn.Linear(NUM_PARAMETERS + 1, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, NUM_NODES)
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def make_small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A linear layer."""
    model = nn.Linear(NUM_PARAMETERS + 1, SMALL_NODES)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def filled_buffer(num_nodes: int = NUM_NODES) -> Buffer:
    """A full Reservoir."""
    slots = Slots({"field": (num_nodes,)}, CAPACITY)
    slots.allocate({"field": np.float32})
    slots.arrays["field"][:] = np.random.default_rng(1).random((CAPACITY, num_nodes), np.float32)
    buffer = Buffer(Reservoir(capacity=CAPACITY, watermark=1, seed=1), slots)
    claimed = buffer.claim(CAPACITY)
    slots.simulation_ids[claimed] = np.arange(CAPACITY) // 100
    slots.time_steps[claimed] = np.arange(CAPACITY) % 100
    buffer.enqueue(claimed)
    buffer.admit()
    return buffer


class Server(TorchServer):
    """A server class as a user would write it."""

    def prepare_training_attributes(self) -> Any:
        return make_model()

    def process_batch(self, batch: Any, config: Any) -> Any:
        return np.column_stack((batch.parameters, batch.time_steps)), batch.fields["field"]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, fields = batch
        return functional.mse_loss(self.model(inputs), fields)


class Small(Server):
    """The same with a linear layer."""

    def prepare_training_attributes(self) -> Any:
        return make_small()


class Ours:
    """A training that goes on for some batches each round; `rate` gives batches per second of a clock."""

    def __init__(
        self,
        stack: ExitStack,
        server_class: type[StreamServer] = Server,
        *,
        prefetch: int = 0,
        precision: str = "32-true",
        buffer: Buffer | None = None,
        batch_size: int = BATCH_SIZE,
        num_batches: int = BATCHES_PER_ROUND,
        num_threads: int = 1,
        **training: Any,
    ) -> None:
        self._config = settings(precision=precision, max_batches=num_batches, **training)
        self._ranks = SoloRanks()
        self._buffer = filled_buffer() if buffer is None else buffer
        self._batch_size = batch_size
        self._server = server_class(self._config)
        self._metrics = Metrics(self._ranks)
        self._phases = Phases()
        self._server.enter_study(self._ranks, [f"p{i}" for i in range(NUM_PARAMETERS)])
        self._server.hold_attributes(
            progress=Progress(),
            buffer=self._buffer,
            output_dir=self._server.output_dir,
            _metrics=self._metrics,
            _stops=StopRequests(),
            phases=self._phases,
            num_threads=num_threads,
        )
        self.step = stack.enter_context(framework_of(self._server).make_step(self._server, self._ranks))
        self._stream: Stream = stack.enter_context(self.make_stream(prefetch))

    def make_stream(self, prefetch: int) -> BatchStream:
        """A further stream of the same buffer, for `rate`."""
        return BatchStream(
            self._buffer,
            self._server,
            parameters_of=lambda simulation: np.full(NUM_PARAMETERS, simulation, np.float64),
            batch_size=self._batch_size,
            phases=self._phases,
            prefetch=prefetch,
            stage=self.step.stage,
        )

    def one_round(self) -> float:
        return self.rate(time.process_time)

    def rate(self, clock: Callable[[], float], stream: Stream | None = None) -> float:
        progress = Progress()
        self._server.hold_attributes(progress=progress)
        stops = StopRequests()
        limits = TrainingLimits(self._config.training, progress, stops)
        self._metrics.gauges[:] = [BufferGauge(self._buffer), SpeedGauge(progress, self._phases)]
        callbacks = Callbacks(self._server)
        schedule = log_schedule(None, is_paced=True)
        logging = Logging(self._metrics, schedule=schedule, progress=progress, phases=self._phases)
        callbacks.surround(before=[limits], after=[logging])
        training = Training(
            ranks=self._ranks,
            stream=stream or self._stream,
            step=self.step,
            stops=stops,
            limits=limits,
            progress=progress,
            callbacks=callbacks,
            metrics=self._metrics,
            phases=self._phases,
            saves=NoSaves(),
            normalization=self._server.normalization,
        )
        return _rate(training.run, clock, self._config.training.max_batches)


class Bare:
    """Random rows of the same samples, forward, backward, update, with nothing around it."""

    make_model = staticmethod(make_model)
    num_nodes = NUM_NODES
    batch_size = BATCH_SIZE
    num_batches = BATCHES_PER_ROUND

    def __init__(self) -> None:
        # Adam takes several times as long for weights without a gradient, those of dead units, by MKL's square root of
        # 0: so both must begin with the same weights, and train on the same samples.
        torch.manual_seed(settings().study.seed)
        self._model, self._optimizer = self.make_model()
        slots = filled_buffer(self.num_nodes).slots
        inputs = np.column_stack([slots.simulation_ids] * NUM_PARAMETERS + [slots.time_steps])
        self._inputs = torch.from_numpy(inputs.astype(np.float32))
        self._fields = torch.from_numpy(slots.arrays["field"])

    def one_round(self) -> float:
        return _rate(self._train, num_batches=self.num_batches)

    def _train(self) -> None:
        for _ in range(self.num_batches):
            rows = torch.randint(CAPACITY, (self.batch_size,))
            loss = functional.mse_loss(self._model(self._inputs[rows]), self._fields[rows])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()


class SmallBare(Bare):
    """The same with a linear layer."""

    make_model = staticmethod(make_small)
    num_nodes = SMALL_NODES
    batch_size = 1
    num_batches = SMALL_BATCHES_PER_ROUND


def _rate(
    train: Callable[[], None], clock: Callable[[], float] = time.process_time, num_batches: int = BATCHES_PER_ROUND
) -> float:
    start_s = clock()
    train()
    return num_batches / (clock() - start_s)


if __name__ == "__main__":
    show(results())
