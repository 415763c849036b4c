"""Samples that no simulation made: right in shape and type, random in value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.config import StudyConfig
from stream_server.server.simulation_data import SimulationBatch

UNKNOWN_DTYPE = "float64"
NUM_UNKNOWN_STEPS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeUpSample:
    """One time step; an optional field is missing in every second one."""

    simulation: int
    time_step: int
    fields: dict[str, NDArray[Any]]


class MadeUpSamples:
    """Endless samples of a study, from normally distributed floating numbers and small whole ones."""

    def __init__(self, config: StudyConfig) -> None:
        self._fields = config.study.fields
        self._labels = range(NUM_UNKNOWN_STEPS) if config.study.time_steps is None else config.study.time_steps.labels
        self._random = np.random.default_rng(config.study.seed)

    def of(self, simulations: Sequence[int]) -> Iterator[MadeUpSample]:
        """Samples of these simulations in turn, each at its next time step."""
        for label in cycle(self._labels):
            for simulation in simulations:
                yield MadeUpSample(simulation=simulation, time_step=label, fields=self._values(label % 2 == 1))

    def buffer(self, simulations: Sequence[int], num: int) -> Buffer:
        """A closed buffer with `num` samples of these simulations in it."""
        slots = Slots({name: spec.shape for name, spec in self._fields.items()}, num)
        slots.allocate({name: spec.dtype or UNKNOWN_DTYPE for name, spec in self._fields.items()})
        buffer = Buffer(Fifo(capacity=num), slots)
        for slot, sample in zip(buffer.claim(num), self.of(simulations), strict=False):
            slots.simulation_ids[slot], slots.time_steps[slot] = sample.simulation, sample.time_step
            for name in self._fields:
                if name in sample.fields:
                    slots.arrays[name][slot] = sample.fields[name]
                else:
                    slots.leave_out(name, [slot])
            buffer.commit([slot])
        buffer.admit()
        buffer.close()
        return buffer

    def batch(
        self, simulations: Sequence[int], num: int, parameters: Mapping[int, NDArray[np.float64]]
    ) -> SimulationBatch:
        """`num` samples of these simulations as one batch."""
        samples = list(islice(self.of(simulations), num))
        return SimulationBatch(
            simulation_ids=np.array([sample.simulation for sample in samples]),
            time_steps=np.array([sample.time_step for sample in samples]),
            parameters=np.stack([parameters[sample.simulation] for sample in samples]),
            fields={
                name: np.stack([sample.fields.get(name, self._zeros(name)) for sample in samples])
                for name in self._fields
            },
            present={name: np.array([name in sample.fields for sample in samples]) for name in self._fields},
        )

    def _values(self, without_optional: bool) -> dict[str, NDArray[Any]]:
        wanted = {name: spec for name, spec in self._fields.items() if not (spec.optional and without_optional)}
        return {name: self._array(spec.shape, np.dtype(spec.dtype or UNKNOWN_DTYPE)) for name, spec in wanted.items()}

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if dtype.kind in "fc":
            return np.asarray(self._random.standard_normal(shape)).astype(dtype)
        return np.asarray(self._random.integers(0, 2, shape)).astype(dtype)

    def _zeros(self, name: str) -> NDArray[Any]:
        spec = self._fields[name]
        return np.zeros(spec.shape, spec.dtype or UNKNOWN_DTYPE)
