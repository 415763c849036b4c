"""Forms the batches of one rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.batch_memory import BatchMemory
from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import SlotArray
from stream_server.errors import Closed
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.simulations.design import ParameterTable
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData, read_only
from stream_server.server.user.stream_server import StreamServer
from stream_server.user_code import call_user

WAIT_S = 1.0

Present = dict[str, NDArray[np.bool_]]


class StreamDataset:
    """The batches of this rank, in the order in which the buffer's policy draws them.

    Iterating gives a `Batch`, or None when there was none for a second, and ends when the buffer is closed and
    drained. The slots of a batch stay as they are until it is released, or the next one drawn: a checkpoint in between
    saves it as drawn, and a restored stream forms such batches first. `num_drawn` counts the samples that were drawn at
    least once, for the closing account. Training thread only.
    """

    def __init__(
        self,
        buffer: Buffer,
        server: StreamServer,
        *,
        parameters_of: Callable[[int], NDArray[np.float64]],
        batch_size: int,
        phases: Phases,
        before_draw: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_drawn = 0
        self._buffer = buffer
        self._server = server
        self._parameters = ParameterTable(parameters_of)
        server.enter_stream(self._parameters.take)
        self._memory = BatchMemory(buffer.slots, batch_size, buffer.sample_shape)
        self._batch_size = batch_size
        self._phases = phases
        self._before_draw = before_draw
        self._held: Draw | None = None
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
        self.release()
        draw = self._buffer.take_restored()
        if draw is None:
            draw = self._draw_new(timeout_s)
        if draw is None:
            return None
        self._held = draw
        return self._form(draw)

    def form_again(self) -> Batch:
        """The batch that was drawn last and is not released, formed once more with the statistics there are now."""
        assert self._held is not None
        return self._form(self._held)

    def _form(self, draw: Draw) -> Batch:
        slots, rows = self._buffer.slots, self._buffer.rows_of(draw.slots)
        with self._phases.measure("gather"):
            keys = np.empty((2, len(draw.slots)), np.int64)
            slots.simulation_ids.take(draw.slots, 0, keys[0], "clip")
            slots.time_steps.take(draw.slots, 0, keys[1], "clip")
            parameters = self._parameters.take(keys[0])
            present = {name: sent.take(rows) for name, sent in slots.present.items()}
        form = self._form_at_once if self._vectorised else self._form_singly
        data = form(rows, keys, parameters, present)
        return Batch(data=data, size=keys.shape[1], keys=keys, num_first=draw.num_first)

    def release(self) -> None:
        """The last batch was trained: its slots may go."""
        if self._held is not None:
            self._buffer.release(self._held)
            self._held = None

    def _draw_new(self, timeout_s: float) -> Draw | None:
        with self._phases.measure("wait_for_data"):
            self._before_draw()
            draw = self._buffer.draw(self._batch_size, timeout_s)
        if draw is not None:
            self.num_drawn += draw.num_first
            if draw.num_first and self._server.normalization.is_observing:
                self._observe(draw)
        return draw

    def _observe(self, draw: Draw) -> None:
        """Let the statistics see the time steps that were drawn for the first time, each once."""
        slots, normalization, rows = self._buffer.slots, self._server.normalization, self._buffer.observe(draw)
        with self._phases.measure("gather"):
            fields = {name: slots.arrays[name][rows[slots.present[name][rows]]] for name in normalization.fields}
            normalization.observe(fields, self._parameters.take(slots.simulation_ids[rows]))

    def _form_at_once(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> Any:
        batch = self._gathered(rows, keys, parameters, present)
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_batch"
            made = call_user(name, server.process_batch, batch, server.config)
            return call_user(f"converting what {name} returned", server.collate.convert, made)

    def _gathered(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> SimulationBatch:
        with self._phases.measure("gather"):
            fields = self._buffer.slots.gather(rows, self._memory.take())
        return SimulationBatch(
            simulation_ids=keys[0].copy(),
            time_steps=keys[1].copy() if rows.ndim == 1 else self._buffer.slots.time_steps[rows],
            parameters=parameters,
            fields=fields,
            present=present,
        )

    def _form_singly(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> Any:
        # The steps of a window lie apart, so that only a copy has them together.
        batch = None if rows.ndim == 1 else self._gathered(rows, keys, parameters, present)
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_simulation_data"
            samples = self._samples(rows, keys, read_only(parameters), present) if batch is None else batch.samples()
            made = [self._process(name, sample) for sample in samples]
            return call_user(f"stacking what {name} returned", server.collate, made)

    def _samples(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> Iterator[SimulationData]:
        fields = {name: read_only(array) for name, array in self._buffer.slots.arrays.items()}
        partial = [(name, sent) for name, sent in present.items() if not sent.all()]
        for number, (row, simulation, time_step) in enumerate(
            zip(rows.tolist(), keys[0].tolist(), keys[1].tolist(), strict=True)
        ):
            sent = {name: array[row, ...] for name, array in fields.items()}
            for name, in_row in partial:
                if not in_row[number]:
                    del sent[name]
            yield SimulationData(
                simulation_id=simulation, time_step=time_step, parameters=parameters[number], fields=sent
            )

    def _process(self, name: str, sample: SimulationData) -> Any:
        try:
            return call_user(name, self._server.process_simulation_data, sample, self._server.config)
        except Exception:
            save_sample(self._server.output_dir / "failed-sample.npz", sample)
            raise


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
