"""What the values look like that a network is trained on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.policy import SlotArray
from stream_server.server.training.metrics import Metrics

NUM_SAMPLES = 64
VALUES_PER_SAMPLE = 1024


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
                for name, values in self._values(held.slots):
                    metrics.log_histogram(name, np.abs(values) if np.iscomplexobj(values) else values)
        finally:
            self._buffer.release(held)

    def _values(self, rows: SlotArray) -> Iterator[tuple[str, NDArray[Any]]]:
        slots = self._buffer.slots
        for name, array in slots.arrays.items():
            sent = rows[slots.present[name][rows]]
            yield f"field/{name}", self._some(array.reshape(len(array), -1), sent)
        simulations = slots.simulation_ids[rows].tolist()
        parameters = np.array([self._parameters_of(simulation) for simulation in simulations])
        for position, name in enumerate(self._parameter_names):
            yield f"parameter/{name}", parameters[:, position]

    def _some(self, array: NDArray[Any], rows: SlotArray) -> NDArray[Any]:
        """Random values of each of the rows."""
        width = array.shape[1]
        if width <= VALUES_PER_SAMPLE:
            return array[rows]
        columns = self._random.integers(width, size=(len(rows), VALUES_PER_SAMPLE))
        values: NDArray[Any] = array[rows[:, None], columns]
        return values
