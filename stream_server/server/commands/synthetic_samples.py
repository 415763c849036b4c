"""Samples that no simulation made: right in shape and type, random in value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Fifo
from stream_server.config import StudyConfig
from stream_server.config.samples import SampleField
from stream_server.server.intake import mailbox
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.run.build import make_buffer, ragged_fields
from stream_server.server.simulations.design import ParameterDesign

UNKNOWN_DTYPE = "float64"
NUM_UNKNOWN_STEPS = 100
NUM_SIMULATIONS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticSample:
    """One time step; an optional field is missing in every second one."""

    simulation: int
    time_step: int
    fields: dict[str, NDArray[Any]]


class SyntheticSource:
    """A source of samples in the place of simulations: everything has come before the training begins.

    `buffer` holds `num_batches` full batches of the first training simulations, and is closed. `validation_store`
    holds one batch and a sample more of the first held-out ones; if there are none, and `is_validated`, of the others.
    """

    num_missing = 0

    def __init__(self, config: StudyConfig, *, num_batches: int, is_validated: bool = False) -> None:
        samples, batch_size = SyntheticSamples(config), config.training.batch_size
        num_held_out = config.validation.simulations
        held_out = range(min(NUM_SIMULATIONS, num_held_out))
        trained = range(num_held_out, num_held_out + min(NUM_SIMULATIONS, config.study.simulations))
        design = ParameterDesign(config)
        self.parameter_names = design.names
        self._parameters = {
            simulation: np.array(list(design.parameters(simulation).values()), np.float64)
            for simulation in (*held_out, *trained)
        }
        self.buffer = samples.buffer(trained, num_batches * batch_size)
        validated = held_out or (trained if is_validated else held_out)
        self.validation_store = samples.store(validated, config.validation.batch_size + 1)
        samples.add_statics(self.buffer, (*held_out, *trained))
        self._events: list[mailbox.Event] = [
            *(mailbox.SimulationFinished(simulation=simulation) for simulation in trained),
            mailbox.ReceptionEnded(),
        ]

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        """The parameters of a simulation, in the order of study.json."""
        return self._parameters[simulation]

    def before_draw(self) -> None:
        """Do nothing: the buffer is full."""

    def events(self) -> list[mailbox.Event]:
        """Take the events since the last call: all of them come in the first round."""
        found, self._events = self._events, []
        return found


class SyntheticSamples:
    """Endless samples of a study, from normally distributed floating numbers and small whole ones.

    A ragged field has another size in each time step; where samples are windows, in each simulation, since the steps of
    a window usually have one mesh. One that may have as many rows as one that is sent once per simulation has as many.
    """

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._fields = config.study.step_fields
        self._statics = config.study.static_fields
        window, steps = config.window, config.study.time_steps
        num_unknown = NUM_UNKNOWN_STEPS + (0 if window is None else window.span)
        self._labels = range(num_unknown) if steps is None else steps.labels
        self._random = np.random.default_rng(config.study.seed)
        self._sizes: dict[tuple[int, str | int], int] = {}
        self._sizes_of_meshes = {spec.shape[0] for spec in self._statics.values() if spec.ragged}

    def of(self, simulations: Sequence[int]) -> Iterator[SyntheticSample]:
        """Samples of these simulations in turn, each at its next time step."""
        for label in cycle(self._labels):
            for simulation in simulations:
                yield SyntheticSample(simulation=simulation, time_step=label, fields=self._values(simulation, label))

    def buffer(self, simulations: Sequence[int], num: int) -> Buffer:
        """A closed buffer with `num` samples of these simulations in it."""
        window, kept = self._config.window, self._num_kept(simulations)
        num_slots = num * (1 if window is None else window.length) + 2 * kept + 1
        buffer = make_buffer(self._config, Fifo(capacity=num), num_slots, most_kept=kept)
        slots = buffer.slots
        slots.allocate({name: spec.dtype or UNKNOWN_DTYPE for name, spec in self._fields.items()})
        last = self._labels[-1]
        for sample in self.of(simulations):
            if not buffer.policy.room:
                break
            [slot] = buffer.claim(1)
            slots.simulation_ids[slot], slots.time_steps[slot] = sample.simulation, sample.time_step
            for name in self._fields:
                if name in sample.fields:
                    slots.set_value(name, slot, sample.fields[name])
                else:
                    slots.leave_out(name, [slot])
            buffer.enqueue([slot])
            buffer.admit()
            if sample.time_step == last:
                buffer.end([sample.simulation])
        buffer.close()
        return buffer

    def store(self, simulations: Sequence[int], num: int) -> ValidationStore:
        """A validation store with `num` samples of these simulations, all complete; empty if there are none.

        Of windows there may be more, or fewer if the simulations are short.
        """
        store = ValidationStore(len(simulations), ragged=ragged_fields(self._config))
        window = self._config.window
        num_steps = num
        if window is not None:
            # A time step must not come twice.
            num_steps = min(num * window.stride + self._num_kept(simulations), len(self._labels) * len(simulations))
        for sample in islice(self.of(simulations), num_steps if simulations else 0):
            fields = {name: sample.fields.get(name, self._zeros(name)) for name in self._fields}
            present = {name: name in sample.fields for name in self._fields}
            store.add(sample.simulation, sample.time_step, fields, present)
        for simulation in simulations:
            store.complete(simulation)
        return store

    def add_statics(self, buffer: Buffer, simulations: Sequence[int]) -> None:
        """Put the fields that are sent once per simulation beside the samples."""
        for simulation in simulations if self._statics else ():
            buffer.slots.statics.put(simulation, self._arrays(simulation, self._statics))

    def _num_kept(self, simulations: Sequence[int]) -> int:
        """The steps of these simulations that windows may wait for, or that wait for others."""
        return 0 if self._config.window is None else 2 * (self._config.window.span + 1) * len(simulations)

    def _values(self, simulation: int, label: int) -> dict[str, NDArray[Any]]:
        without_optional = label % 2 == 1
        specs = {name: spec for name, spec in self._fields.items() if not (spec.optional and without_optional)}
        return self._arrays(simulation, specs)

    def _arrays(self, simulation: int, specs: Mapping[str, SampleField]) -> dict[str, NDArray[Any]]:
        return {
            name: self._array(self._shape(simulation, name, spec), np.dtype(spec.dtype or UNKNOWN_DTYPE))
            for name, spec in specs.items()
        }

    def _shape(self, simulation: int, name: str, spec: SampleField) -> tuple[int, ...]:
        """The shape of one time step; the largest extent of a ragged field comes as well as the smallest."""
        if not spec.ragged:
            return spec.shape
        largest = spec.shape[0]
        is_mesh = largest in self._sizes_of_meshes
        # Whole numbers are 0 and 1, and may be those of rows.
        size = int(self._random.integers(min(2, largest) if is_mesh else 0, largest, endpoint=True))
        if is_mesh:
            size = self._sizes.setdefault((simulation, largest), size)
        elif self._config.window is not None:
            size = self._sizes.setdefault((simulation, name), size)
        return (size, *spec.shape[1:])

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if dtype.kind in "fc":
            return np.asarray(self._random.standard_normal(shape)).astype(dtype)
        return np.asarray(self._random.integers(0, 2, shape)).astype(dtype)

    def _zeros(self, name: str) -> NDArray[Any]:
        spec = self._fields[name]
        return np.zeros(spec.smallest_shape, spec.dtype or UNKNOWN_DTYPE)
