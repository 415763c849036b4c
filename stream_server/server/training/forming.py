"""Forms a batch: gathers the samples of a draw and applies the user's methods to them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.batch_memory import MAX_SETS, BatchMemory
from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import SlotArray
from stream_server.buffers.row_copies import RowCopies
from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.simulations.design import ParameterTable
from stream_server.server.user.collate import KeptSample
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData, read_only
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.disk import open_regular
from stream_server.user_code import call_user

MOST_TOLD = 16
TOO_LARGE = object()

_log = logging.getLogger(__name__)

Present = dict[str, NDArray[np.bool_]]


def as_it_is(data: Any) -> Any:
    """A batch's data that stays where it is until its step."""
    return data


class BatchForming:
    """Makes batches of draws that are not released. It belongs to one thread, which runs the user's methods.

    `num_ahead` batches may be formed and not trained yet; the memory of so many is used again. `stage` begins to bring
    a copy of the data of a batch to the device, or gives the data itself.
    """

    def __init__(
        self,
        buffer: Buffer,
        server: StreamServer,
        *,
        parameters: ParameterTable,
        batch_size: int,
        phases: Phases,
        num_ahead: int = 0,
        stage: Callable[[Any], Any] = as_it_is,
    ) -> None:
        self._buffer = buffer
        self._server = server
        self._parameters = parameters
        self._memory = BatchMemory(buffer.slots, batch_size, buffer.sample_shape, max_sets=MAX_SETS + num_ahead)
        self._batch_size = batch_size
        self._copies = RowCopies(server.num_threads)
        self._phases = phases
        self._num_ahead = num_ahead
        self._stage = stage
        self._kept = KeptSample(server.collate)
        self._vectorised = type(server).process_batch is not StreamServer.process_batch

    def close(self) -> None:
        """No further batch is formed."""
        self._copies.close()

    def form(self, draw: Draw) -> Batch:
        """The batch of a draw, with the statistics there are now.

        Raises:
            UserCodeError: the user's `process_simulation_data` or `process_batch` raised.
        """
        with self._phases.measure("gather"):
            rows, keys, parameters, present = self._keys(draw)
            is_first = self._buffer.is_first(draw)
            # The steps of a window lie apart, so that only a copy has them together.
            is_copied = self._vectorised or rows.ndim > 1
            copied = self._gather(rows, keys, parameters, present) if is_copied else None
        if self._vectorised:
            return Batch(data=self._form_at_once(copied), size=len(rows), keys=keys, is_first=is_first)
        samples, fits = self._form_singly(rows, keys, parameters, present, copied)
        return Batch(
            data=self._stage(samples),
            size=int(np.count_nonzero(fits)),
            keys=keys[:, fits],
            is_first=is_first[fits],
            num_dropped=int(np.count_nonzero(~fits)),
            num_first_dropped=int(np.count_nonzero(is_first & ~fits)),
        )

    def samples(self, draw: Draw) -> list[SimulationData]:
        """The samples of a draw one by one, with arrays of their own, which stay after its release."""
        with self._phases.measure("gather"):
            rows, keys, parameters, present = self._keys(draw)
            fields = self._buffer.slots.gather(rows) | self._buffer.slots.statics.gather(keys[0])
        return list(self._batch(rows, keys, parameters, present, fields).own_samples())

    def process(self, sample: SimulationData) -> Any:
        """The result of the user's `process_simulation_data` for a sample; without one, the sample itself.

        Raises:
            UserCodeError: it raised.
        """
        server = type(self._server)
        if server.process_simulation_data is StreamServer.process_simulation_data:
            return sample
        # Meanwhile a dataset of the user's may have written into it.
        self._kept.look_again()
        result = self._process(f"{server.__name__}.process_simulation_data", sample)
        self._kept.check()
        return self._kept.note(result)

    def _form_at_once(self, batch: SimulationBatch | None) -> Any:
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_batch"
            result = call_user(name, server.process_batch, batch, server.config)
            data = call_user(f"converting what {name} returned", server.collate.convert, result)
            return self.set_apart(data) if self._num_ahead else data

    def set_apart(self, data: Any) -> Any:
        """The data of a batch that waits for its step while the user's code fills the same arrays again for another.

        A copy of 64 x 4 MB takes 0.13 s on the thread that works ahead, where stacking them by torch takes 0.5 s.
        """
        if not self._num_ahead:
            return data
        staged = self._stage(data)
        return self._server.collate.copied(data) if staged is data else staged

    def _gather(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> SimulationBatch:
        # A batch that was drawn before a restart may be larger than those that are drawn now.
        memory, slots = self._memory.take() if len(rows) <= self._batch_size else None, self._buffer.slots
        fields = slots.gather(rows, memory, self._copies.take) | slots.statics.gather(keys[0], memory)
        return self._batch(rows, keys, parameters, present, fields)

    def _keys(self, draw: Draw) -> tuple[SlotArray, NDArray[np.int64], NDArray[np.float64], Present]:
        """The rows of a draw, and all but their fields."""
        slots, rows = self._buffer.slots, self._buffer.rows_of(draw.slots)
        keys = np.empty((2, len(draw.slots)), np.int64)
        slots.simulation_ids.take(draw.slots, 0, keys[0], "clip")
        slots.time_steps.take(draw.slots, 0, keys[1], "clip")
        parameters = self._parameters.take(keys[0])
        present = {name: sent.take(rows) for name, sent in slots.present.items()}
        for name in slots.statics.shapes:
            present[name] = np.ones(len(draw.slots), bool)
        return rows, keys, parameters, present

    def _batch(
        self,
        rows: SlotArray,
        keys: NDArray[np.int64],
        parameters: NDArray[np.float64],
        present: Present,
        fields: dict[str, NDArray[Any]],
    ) -> SimulationBatch:
        return SimulationBatch(
            simulation_ids=keys[0].copy(),
            time_steps=keys[1].copy() if rows.ndim == 1 else self._buffer.slots.time_steps[rows],
            parameters=parameters,
            fields=fields,
            present=present,
        )

    def _form_singly(
        self,
        rows: SlotArray,
        keys: NDArray[np.int64],
        parameters: NDArray[np.float64],
        present: Present,
        batch: SimulationBatch | None,
    ) -> tuple[Any, NDArray[np.bool_]]:
        """The data, and which of the samples are in it; `batch` is a copy of them, if there is one."""
        with self._phases.measure("transform"):
            server = self._server
            name = f"{type(server).__name__}.process_simulation_data"
            samples = list(
                self._samples(rows, keys, read_only(parameters), present) if batch is None else batch.samples()
            )
            results = [self._kept.note(self._process(name, sample)) for sample in samples]
            self._kept.check()
            if any(result is None for result in results):
                raise UserCodeError(
                    f"{name} returned None, which leaves a sample out only where train_dataloader makes the batches: "
                    "return arrays, and skip a batch in training_step by self.skip_batch()"
                )
            stacking = f"stacking what {name} returned"
            if (data := self._stack(stacking, results)) is not TOO_LARGE:
                return data, np.ones(len(results), bool)
            fits = np.array([self._stack(stacking, [result]) is not TOO_LARGE for result in results])
            is_whole = not fits.any()
            tell_too_large(name, [each for each, fit in zip(samples, fits, strict=True) if not fit], is_whole=is_whole)
            if is_whole:
                # The training skips such a batch, and a batch of no samples is none.
                fits = ~fits
            with np.errstate(over="ignore"):
                return call_user(stacking, server.collate, list(compress(results, fits))), fits

    def _stack(self, stacking: str, results: list[Any]) -> Any:
        """The samples as one batch, or TOO_LARGE where a finite number would become infinite."""
        try:
            with np.errstate(over="raise"):
                return call_user(stacking, self._server.collate, results)
        except UserCodeError as error:
            if isinstance(error.__cause__, FloatingPointError):
                return TOO_LARGE
            raise

    def _samples(
        self, rows: SlotArray, keys: NDArray[np.int64], parameters: NDArray[np.float64], present: Present
    ) -> Iterator[SimulationData]:
        slots = self._buffer.slots
        fields = {name: read_only(array) for name, array in slots.arrays.items()}
        partial = [(name, sent) for name, sent in present.items() if not sent.all()]
        for number, (row, simulation, time_step) in enumerate(
            zip(rows.tolist(), keys[0].tolist(), keys[1].tolist(), strict=True)
        ):
            sent = {name: array[row, ...] for name, array in fields.items()} | slots.statics[simulation]
            for name, lengths in slots.lengths.items():
                sent[name] = sent[name][: lengths[row]]
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


def tell_too_large(name: str, samples: Sequence[SimulationData], *, is_whole: bool) -> None:
    """Warn of samples from which a user's method has made finite numbers that the precision cannot hold.

    `is_whole`: they are all of their batch.
    """
    fields = {
        field
        for each in samples
        for field, array in each.fields.items()
        if np.abs(array).max(initial=0.0) > np.finfo(np.float32).max
    }
    pairs = ", ".join(f"({sample.simulation_id}, {sample.time_step})" for sample in samples[:MOST_TOLD])
    _log.warning(
        "%s, since numbers that %s returned are too large for training.precision, as (simulation, time step): %s%s. "
        "Scale them there, or train with 64-true",
        f"a batch of {len(samples)} samples makes no update" if is_whole else f"{len(samples)} samples are left out",
        name,
        pairs,
        "".join(f"; field {field}" for field in sorted(fields)),
    )


def save_sample(path: Path, sample: SimulationData) -> None:
    """Keep a sample that a user's method could not process: the first of a run, and only where a file can be made."""
    fields: dict[str, Any] = {f"field_{name}": array for name, array in sample.fields.items()}
    try:
        with open(path, "xb", opener=open_regular) as file:
            np.savez(
                file,
                simulation_id=sample.simulation_id,
                time_step=sample.time_step,
                parameters=sample.parameters,
                **fields,
            )
    except OSError:
        return
