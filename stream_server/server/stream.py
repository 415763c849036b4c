"""Forms the batches of one rank."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.errors import Closed
from stream_server.server.simulation_data import SimulationBatch, SimulationData, read_only
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.phases import Phases

WAIT_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one training step of one rank is given.

    `keys` are the (simulation id, time step) of the samples, shape (size, 2); `num_first` of them are drawn for
    the first time.
    """

    data: Any
    size: int
    keys: NDArray[np.int64]
    num_first: int


class StreamDataset:
    """The batches of this rank, in the order in which the buffer's policy draws them.

    Iterating gives a `Batch`, or None when there was none for a second, and ends when the buffer is closed and
    drained. `num_drawn` counts the samples that were drawn at least once, for the closing account. Training thread
    only.
    """

    def __init__(
        self,
        buffer: Buffer,
        server: StreamServer,
        *,
        parameters_of: Callable[[int], NDArray[np.float64]],
        batch_size: int,
        phases: Phases,
    ) -> None:
        self.num_drawn = 0
        self._buffer = buffer
        self._server = server
        self._parameters_of = parameters_of
        self._batch_size = batch_size
        self._phases = phases
        self._vectorised = type(server).process_batch is not StreamServer.process_batch

    def __iter__(self) -> Iterator[Batch | None]:
        while True:
            try:
                yield self.draw(WAIT_S)
            except Closed:
                return

    def draw(self, timeout_s: float) -> Batch | None:
        """Form the next batch, waiting at most `timeout_s` for its samples.

        Raises:
            Closed: all that was received has been drawn.
            ProducerFailed: the receiver closed the buffer with an error, which is the cause.
            UserCodeError: the user's `process_simulation_data` or `process_batch` raised.
        """
        with self._phases.measure("wait_for_data"):
            draw = self._buffer.draw(self._batch_size, timeout_s)
        if draw is None:
            return None
        self.num_drawn += draw.num_first
        slots = self._buffer.slots
        try:
            keys = np.stack([slots.simulation_ids[draw.slots], slots.time_steps[draw.slots]], axis=1)
            data = self._form_at_once(draw.slots, keys) if self._vectorised else self._form_singly(draw.slots, keys)
        finally:
            self._buffer.release(draw)
        return Batch(data=data, size=len(keys), keys=keys, num_first=draw.num_first)

    def _form_at_once(self, rows: NDArray[np.intp], keys: NDArray[np.int64]) -> Any:
        slots = self._buffer.slots
        with self._phases.measure("gather"):
            batch = SimulationBatch(
                simulation_ids=keys[:, 0].copy(),
                time_steps=keys[:, 1].copy(),
                parameters=np.stack([self._parameters_of(simulation) for simulation in keys[:, 0].tolist()]),
                fields=slots.gather(rows),
                present={name: present[rows] for name, present in slots.present.items()},
            )
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_batch"
            return server.collate.convert(call_user(name, server.process_batch, batch, server.config))

    def _form_singly(self, rows: NDArray[np.intp], keys: NDArray[np.int64]) -> Any:
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_simulation_data"
            return server.collate([self._process(name, sample) for sample in self._samples(rows, keys)])

    def _process(self, name: str, sample: SimulationData) -> Any:
        try:
            return call_user(name, self._server.process_simulation_data, sample, self._server.config)
        except Exception:
            save_sample(self._server.output_dir / "failed-sample.npz", sample)
            raise

    def _samples(self, rows: NDArray[np.intp], keys: NDArray[np.int64]) -> Iterator[SimulationData]:
        slots = self._buffer.slots
        fields = {name: read_only(array) for name, array in slots.arrays.items()}
        for row, (simulation, time_step) in zip(rows.tolist(), keys.tolist(), strict=True):
            yield SimulationData(
                simulation_id=simulation,
                time_step=time_step,
                parameters=self._parameters_of(simulation),
                fields={name: array[row, ...] for name, array in fields.items() if slots.present[name][row]},
            )


def save_sample(path: Path, sample: SimulationData) -> None:
    """Keep a sample that a user's method could not process: the first of a run, and only where a file can be made."""
    fields: dict[str, Any] = {f"field_{name}": array for name, array in sample.fields.items()}
    try:
        with path.open("xb") as file:
            np.savez(
                file,
                simulation_id=sample.simulation_id,
                time_step=sample.time_step,
                parameters=sample.parameters,
                **fields,
            )
    except OSError:
        return
