"""From `Data` messages to samples in the training stream. Receiver thread."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stream_server.client_api.messages import ALL_FIELDS, MAX_PART_BYTES, Data, Refusal
from stream_server.errors import NonFiniteData
from stream_server.server.filling import Inlet, Unfit, all_finite, fill_part, fill_whole, run_of
from stream_server.server.tracker import Tracker
from stream_server.server.tracks import Connection, Step
from stream_server.server.validation_store import ValidationStore

REJECTED = "nonfinite"


class SlotStore(Protocol):
    """The slots of a buffer, as the receiver fills them."""

    arrays: dict[str, npt.NDArray[Any]]
    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]

    def allocate(self, dtypes: dict[str, npt.DTypeLike]) -> None: ...

    def leave_out(self, name: str, slots: Sequence[int]) -> None: ...


class Sink(Protocol):
    """The receiver's side of a buffer."""

    @property
    def slots(self) -> SlotStore: ...

    def claim(self, num: int) -> list[int]: ...

    def discard(self, slots: Sequence[int]) -> None: ...

    def commit(self, slots: Sequence[int]) -> None: ...

    def admit(self) -> list[int]: ...

    def withdraw(self, simulation_id: int) -> int: ...

    def close(self, error: BaseException | None = None) -> None: ...


class Intake:
    """Fills slots with what comes, and hands them to the buffer turn by turn.

    `nonfinite` says what happens to samples with NaN or infinity: reject, keep or stop. `touched` are the
    connections that may be owed an acknowledgement, by peer.
    """

    def __init__(self, *, buffer: Sink, tracker: Tracker, validation: ValidationStore, nonfinite: str) -> None:
        self.buffer = buffer
        self.tracker = tracker
        self.validation = validation
        self.nonfinite = nonfinite
        self.touched: dict[bytes, Connection] = {}
        self.num_withdrawn = 0
        self._ready: list[int] = []
        self._checked: list[str] = []

    def allocate(self) -> None:
        """Make the arrays once the types of all fields are known."""
        slots, dtypes = self.buffer.slots, self.tracker.openings.dtypes
        if not slots.arrays and self.tracker.openings.dtypes_known:
            slots.allocate({name: dtypes[name] for name in self.tracker.fields})
            self._checked = [name for name in self.tracker.fields if dtypes[name].kind in "fc"]

    def take(self, connection: Connection, data: Data, inlet: Inlet) -> Refusal | None:
        """Receive the payload of one message into the slots of its steps.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        self.touched[connection.peer] = connection
        steps = self.tracker.place(connection, data)
        if isinstance(steps, Refusal):
            return steps
        if not any(steps):
            return None
        arrays = self.buffer.slots.arrays
        try:
            if data.field == ALL_FIELDS:
                fill_whole(arrays, connection, data, steps, inlet)
            else:
                step = steps[0]
                assert step is not None
                num_bytes = min(connection.places[data.field].num_bytes - data.offset, MAX_PART_BYTES)
                fill_part(arrays, connection, data, step, num_bytes, inlet)
        except Unfit as problem:
            self.tracker.abandon(connection, steps)
            return self.tracker.refuse(problem.reason, str(problem), data.sequence)
        whole = self.tracker.arrived(connection, data, steps)
        if isinstance(whole, Refusal):
            return whole
        self.settle(whole)
        return None

    def settle(self, steps: Sequence[Step]) -> None:
        """Accept or reject steps of one simulation that are all there."""
        if not steps:
            return
        slots, simulation = self.buffer.slots, steps[0].track.simulation
        for step in steps:
            slots.simulation_ids[step.slot] = simulation
            slots.time_steps[step.slot] = self.tracker.label(step.index)
            if step.present:
                for name in self.tracker.fields.keys() - step.present.keys():
                    slots.leave_out(name, [step.slot])
        run = run_of(steps)
        if run is not None and self._is_fit(run):
            fit = list(steps)
        else:
            fit = [step for step in steps if self._is_fit(slice(step.slot, step.slot + 1))]
            for step in set(steps).difference(fit):
                self._reject(step)
        for step in fit:
            self.tracker.accept(step)
        if simulation in self.validation:
            self._hold_out(fit)
        else:
            self._ready += [step.slot for step in fit]

    def flush(self) -> None:
        """End a turn: give the buffer what is ready, and note what has found room in it."""
        if self._ready:
            self.buffer.commit(self._ready)
            self._ready = []
        if self.tracker.has_committed:
            self._touch(self.tracker.in_stream(self.buffer.admit()))
        if self.tracker.freed:
            self.buffer.discard(self.tracker.freed)
            self.tracker.freed = []

    def withdraw(self, simulation: int) -> None:
        """Take back what came of a simulation and was not trained on yet."""
        self.flush()
        self.num_withdrawn += self.buffer.withdraw(simulation)
        self.tracker.withdraw(simulation)
        self.validation.withdraw(simulation)

    def _is_fit(self, rows: slice) -> bool:
        if self.nonfinite == "keep":
            return True
        arrays = self.buffer.slots.arrays
        return all(all_finite(arrays[name][rows]) for name in self._checked)

    def _reject(self, step: Step) -> None:
        if self.nonfinite == "stop":
            simulation, time_step = step.track.simulation, self.tracker.label(step.index)
            raise NonFiniteData(
                f"simulation {simulation} sent NaN or infinity in time step {time_step}, and training.nonfinite is "
                '"stop"; "reject" would leave such samples out'
            )
        self._touch(self.tracker.reject(step, REJECTED))

    def _hold_out(self, steps: Sequence[Step]) -> None:
        arrays = self.buffer.slots.arrays
        for step in steps:
            self.validation.add(
                step.track.simulation,
                self.tracker.label(step.index),
                {name: array[step.slot] for name, array in arrays.items()},
                {name: not step.present or name in step.present for name in arrays},
            )
        slots = [step.slot for step in steps]
        self._touch(self.tracker.in_stream(slots))
        self.tracker.freed += slots

    def _touch(self, connections: Sequence[Connection]) -> None:
        for connection in connections:
            self.touched[connection.peer] = connection
