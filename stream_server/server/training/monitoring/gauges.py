"""The gauges: what is measured of buffer, inputs, memory and speed whenever metrics are written, and when that is."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.policy import SlotArray
from stream_server.server.metrics.metrics import Gauge, Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.user.callbacks import Callback

NUM_SAMPLES = 64
VALUES_PER_SAMPLE = 1024

# How often metrics are written where study.json does not say it.
LOG_EVERY_BATCHES = 10
LOG_LEAST_S = 0.25

STATUS = Path("/proc/self/status")
HOST = {"VmRSS": "memory/host_bytes", "VmHWM": "memory/host_peak_bytes"}


class BufferGauge:
    """Fill of the buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def __call__(self, metrics: Metrics, /) -> None:
        metrics.log("buffer/population", self._buffer.population)
        metrics.log("buffer/unseen", self._buffer.num_unseen)


class SamplesGauge:
    """Number of draws and age, in samples that came later, of each sample in the buffer: scans all of them."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def __call__(self, metrics: Metrics, /) -> None:
        metrics.log_histogram("buffer/seen", self._buffer.seen_counts())
        metrics.log_histogram("buffer/age", self._buffer.ages())


class InputGauge:
    """The distribution of each field and parameter over random samples of the buffer, as they were sent.

    It looks at no more than 64 samples, and at no more than 1024 random values of a field in each: its cost does not
    grow with the study. Of complex values the magnitude counts.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        parameter_names: Sequence[str],
        parameters_of: Callable[[int], NDArray[np.float64]],
    ) -> None:
        self._buffer = buffer
        self._parameter_names = tuple(parameter_names)
        self._parameters_of = parameters_of
        # Its own, so that what is drawn for training does not depend on what is logged.
        self._random = np.random.default_rng(0)

    def __call__(self, metrics: Metrics, /) -> None:
        held = self._buffer.peek(NUM_SAMPLES, self._random)
        try:
            if len(held.slots):
                for name, values in self._values(held.slots, self._buffer.rows_of(held.slots).reshape(-1)):
                    metrics.log_histogram(name, np.abs(values) if np.iscomplexobj(values) else values)
        finally:
            self._buffer.release(held)

    def _values(self, samples: SlotArray, rows: SlotArray) -> Iterator[tuple[str, NDArray[Any]]]:
        slots = self._buffer.slots
        for name in slots.arrays:
            sent = rows[slots.present[name][rows]]
            yield f"field/{name}", self._some_of(name, sent)
        simulations = slots.simulation_ids[samples].tolist()
        parameters = np.array([self._parameters_of(simulation) for simulation in simulations])
        for position, name in enumerate(self._parameter_names):
            yield f"parameter/{name}", parameters[:, position]

    def _some_of(self, name: str, rows: SlotArray) -> NDArray[Any]:
        slots = self._buffer.slots
        array = slots.arrays[name]
        if name not in slots.lengths:
            return self._some(array.reshape(len(array), -1), rows)
        values = slots.rows(name, rows).reshape(-1)
        num = VALUES_PER_SAMPLE * len(rows)
        return values if len(values) <= num else values[self._random.integers(len(values), size=num)]

    def _some(self, array: NDArray[Any], rows: SlotArray) -> NDArray[Any]:
        """Random values of each of the rows."""
        width = array.shape[1]
        if width <= VALUES_PER_SAMPLE:
            return array[rows]
        columns = self._random.integers(width, size=(len(rows), VALUES_PER_SAMPLE))
        values: NDArray[Any] = array[rows[:, None], columns]
        return values


class MemoryGauge:
    """Bytes of this rank, now and at their peak: resident in the host, and on its device.

    `device_bytes` is that of the framework.
    """

    def __init__(self, device_bytes: Callable[[], Mapping[str, int]] = dict, status: Path = STATUS) -> None:
        self._device_bytes = device_bytes
        self._status = status

    def __call__(self, metrics: Metrics, /) -> None:
        for name, num_bytes in {**host_bytes(self._status), **self._device_bytes()}.items():
            metrics.log(name, num_bytes)


def host_bytes(status: Path = STATUS) -> dict[str, int]:
    """Resident bytes of this process, now and at their peak, as Linux counts them."""
    lines = (line.partition(":") for line in status.read_text().splitlines())
    return {HOST[key]: 1024 * int(value.split()[0]) for key, _, value in lines if key in HOST}


class SpeedGauge(Callback):
    """Batches and samples per second of all ranks, and the share of each phase, since the last write."""

    def __init__(self, progress: Progress, phases: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._phases = phases
        self._clock = clock
        self._mark()

    def on_train_start(self, server: Any) -> None:
        """The set-up does not count."""
        self._mark()

    def __call__(self, metrics: Metrics, /) -> None:
        since_s, batches, draws, seconds = self._now_s, self._batches, self._draws, self._seconds
        self._mark()
        duration_s = self._now_s - since_s
        if duration_s <= 0:
            return
        metrics.log("speed/batches_per_s", (self._batches - batches) / duration_s)
        metrics.log("speed/samples_per_s", (self._draws - draws) / duration_s)
        for name, now_s in self._seconds.items():
            metrics.log(f"time/{name}", (now_s - seconds.get(name, 0.0)) / duration_s)

    def _mark(self) -> None:
        self._now_s, self._batches, self._draws = self._clock(), self._progress.batches, self._progress.draws
        self._seconds = self._phases.seconds


class RateLimited:
    """Reads a costly gauge so seldom that it takes at most `SHARE` of the time.

    From one reading to the next at least `LEAST_S` seconds pass, and at least `PART` of the time since the first one:
    so there are few enough histograms, even of a run of days, to fit on a screen.
    """

    SHARE = 0.002
    LEAST_S = 5.0
    PART = 0.01

    def __init__(self, gauge: Gauge, clock: Callable[[], float] = time.monotonic) -> None:
        self._gauge = gauge
        self._clock = clock
        self._began_s: float | None = None
        self._next_s = float("-inf")

    def __call__(self, metrics: Metrics, /) -> None:
        now_s = self._clock()
        if now_s < self._next_s:
            return
        if self._began_s is None:
            self._began_s = now_s
        self._gauge(metrics)
        cost_s = self._clock() - now_s
        self._next_s = now_s + max(cost_s / self.SHARE, self.LEAST_S, self.PART * (now_s - self._began_s))


def log_schedule(every: int | float | None, *, is_paced: bool) -> Schedule:
    """The schedule of log points: `every` so many batches, by default ten; if `is_paced`, at most four a second."""
    return Schedule(every=every or LOG_EVERY_BATCHES, least_s=LOG_LEAST_S if is_paced else 0.0)


class Logging(Callback):
    """Writes the metrics whenever its schedule says so, and at the end of the training. Collective."""

    def __init__(self, metrics: Metrics, *, schedule: Schedule, progress: Progress, phases: Phases) -> None:
        self._metrics = metrics
        self._schedule = schedule
        self._progress = progress
        self._phases = phases

    def on_step_end(self, server: Any) -> None:
        if self._schedule.is_due(self._progress):
            self._write()
            self._schedule.done(self._progress)

    def on_train_end(self, server: Any) -> None:
        self._write()

    def on_checkpoint(self, server: Any, path: Path) -> None:
        self._metrics.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state["schedule"])

    def _write(self) -> None:
        with self._phases.measure("log"):
            self._metrics.write(self._progress.batches, self._progress.elapsed_s)
