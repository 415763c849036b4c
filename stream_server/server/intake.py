"""From `Data` messages to samples in the training stream. Receiver thread."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stream_server.client_api.messages import ALL_FIELDS, MAX_PART_BYTES, Data, Refusal
from stream_server.errors import ConfigError, NonFiniteData
from stream_server.server.batch_memory import no_memory
from stream_server.server.filling import Inlet, Unfit, all_finite, fill_part, fill_rows, fill_whole, side_by_side
from stream_server.server.streak import Streak
from stream_server.server.tracker import Tracker
from stream_server.server.tracks import Connection, Run, Track
from stream_server.server.validation_store import ValidationStore

REJECTED = "nonfinite"
STOCK = 64


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


class Record(Protocol):
    """Where accepted samples are written down, in the order in which they go into the stream."""

    def append(self, slots: Sequence[int]) -> None: ...

    def append_held_out(self, slots: Sequence[int]) -> None: ...

    def finish(self, simulation: int) -> None: ...

    def withdraw(self, simulation: int) -> None: ...

    def position(self) -> int | None: ...

    def sync(self, position: int | None) -> int | None: ...


class Intake:
    """Fills slots with what comes, and hands them to the buffer turn by turn.

    `nonfinite` says what happens to samples with NaN or infinity: reject, keep or stop. `touched` are the
    connections that may be owed an acknowledgement, by peer. `recorder`, if there is one, is given what was accepted.
    """

    def __init__(self, *, buffer: Sink, tracker: Tracker, validation: ValidationStore, nonfinite: str) -> None:
        self.buffer = buffer
        self.tracker = tracker
        self.assembly = tracker.assembly
        self.settlement = tracker.settlement
        self.numbering = tracker.numbering
        self.validation = validation
        self.nonfinite = nonfinite
        self.recorder: Record | None = None
        self.touched: dict[bytes, Connection] = {}
        self.num_withdrawn = 0
        self._ready: list[int] = []
        self._checked: list[str] = []
        self._stock: list[int] = []
        self._in_streak: list[Track] = []
        self.assembly.claim = self.claim

    def allocate(self) -> None:
        """Make the arrays once the types of all fields are known.

        Raises:
            ConfigError: the system refuses the memory.
        """
        slots, openings = self.buffer.slots, self.tracker.openings
        if not openings.dtypes_known:
            return
        if not slots.arrays:
            try:
                slots.allocate({name: openings.dtypes[name] for name in self.tracker.fields})
            except MemoryError as error:
                raise ConfigError(no_memory(error)) from error
        if not self._checked:
            self._checked = [name for name in self.tracker.fields if openings.dtypes[name].kind in "fc"]

    def wait_again(self, simulations: Sequence[int]) -> None:
        """Steps of these simulations wait in a restored buffer, in this order."""
        self.settlement.wait_again(self.tracker.ledger, simulations)

    def claim(self, num: int) -> list[int]:
        """Slots for `num` steps. They are taken from the buffer many at a time, and in order as far as possible."""
        if len(self._stock) < num:
            # Steps that were rejected in this turn have left their slots, but not their clients' windows.
            self._discard_freed()
            self._stock += self.buffer.claim(max(num, STOCK)) or self.buffer.claim(num - len(self._stock))
            self._stock.sort()
        slots = self._stock[:num]
        del self._stock[:num]
        assert len(slots) == num, "a step inside its window has no slot"
        return slots

    def goes_on(self, connection: Connection, header: bytes) -> bool:
        """Whether a message is the next one of its connection's streak, for `take_next`."""
        streak = connection.streak
        if streak is None or not streak.goes_on(header):
            return False
        if not streak.num_messages:
            # Two connections may send the same steps; the second one must meet what the first one has settled.
            self.settle_streak(connection.track)
            streak.room = self.assembly.room_for_streak(connection, streak.index)
        return streak.room >= streak.num_steps

    def take_next(self, connection: Connection, inlet: Inlet) -> Refusal | None:
        """Receive the next message of a streak, which is settled later, together with others.

        Raises:
            NonFiniteData: as for `take`.
        """
        streak = connection.streak
        assert streak is not None
        self.touched[connection.peer] = connection
        slots = self.claim(streak.num_steps)
        try:
            is_fit = fill_rows(streak.targets, slots, inlet)
        except Unfit as problem:
            self.settlement.drop(self._place_apart(connection, streak, slots))
            return self.tracker.refuse(problem.reason, str(problem), streak.sequence - 1)
        if not is_fit:
            self.settle(self._place_apart(connection, streak, slots))
            return None
        if not streak.num_messages:
            self._in_streak.append(connection.track)
            connection.track.in_streak = connection
        streak.add(slots)
        return None

    def expect(self, connection: Connection, data: Data, header: bytes) -> None:
        """Begin a streak after this message, if messages like it can make one."""
        connection.streak = self.assembly.streak_after(connection, data, header, self.buffer.slots.arrays)

    def settle_streak(self, track: Track) -> None:
        """Settle what has come of a streak of this simulation, if there is one."""
        connection, track.in_streak = track.in_streak, None
        if connection is None or connection.streak is None:
            return
        streak = connection.streak
        run = self.assembly.place_streak(connection, streak.first, streak.slots, streak.num_messages)
        streak.slots, streak.num_messages = [], 0
        self.settle(run, is_fit=True)

    def take(self, connection: Connection, data: Data, inlet: Inlet) -> Refusal | None:
        """Receive the payload of one message into the slots of its steps.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        self.touched[connection.peer] = connection
        self.settle_streak(connection.track)
        placed = self.assembly.place(connection, data)
        if isinstance(placed, Refusal):
            return placed
        arrays = self.buffer.slots.arrays
        if isinstance(placed, Run):
            try:
                is_fit = fill_whole(arrays, connection, data, placed.slots, inlet)
            except Unfit as problem:
                self.settlement.drop(placed)
                return self.tracker.refuse(problem.reason, str(problem), data.sequence)
            self.settle(placed, is_fit=is_fit)
            return None
        if not any(placed):
            return None
        try:
            if data.field == ALL_FIELDS:
                fill_whole(arrays, connection, data, [None if step is None else step.slot for step in placed], inlet)
            else:
                assert placed[0] is not None
                num_bytes = min(connection.places[data.field].num_bytes - data.offset, MAX_PART_BYTES)
                fill_part(arrays, connection, data, placed[0].slot, num_bytes, inlet)
        except Unfit as problem:
            self.assembly.abandon(connection, placed)
            return self.tracker.refuse(problem.reason, str(problem), data.sequence)
        whole = self.assembly.arrived(connection, data, placed)
        if isinstance(whole, Refusal):
            return whole
        for run in whole:
            self.settle(run)
        return None

    def settle(self, run: Run, *, is_fit: bool = False) -> None:
        """Accept or reject steps that are all there; those that are not known to be fit are looked at."""
        slots = self.buffer.slots
        rows: slice | list[int] = side_by_side(run.slots) or run.slots
        first, every = self.numbering.label(run.indices.start), self.numbering.time_steps.every * run.indices.step
        slots.simulation_ids[rows] = run.track.simulation
        slots.time_steps[rows] = first if len(run.slots) == 1 else range(first, first + every * len(run.slots), every)
        for name in run.absent:
            slots.leave_out(name, run.slots)
        if is_fit or self.nonfinite == "keep":
            self._accept(run)
            return
        for single in map(run.single, range(len(run.slots))):
            if self._is_fit(single.slots[0]):
                self._accept(single)
            else:
                self._reject(single)

    def flush(self) -> None:
        """End a turn: give the buffer what is ready, and note what has found room in it."""
        for track in self._in_streak:
            self.settle_streak(track)
        self._in_streak.clear()
        if self._ready:
            self.buffer.commit(self._ready)
            self._ready = []
        if self.settlement.has_committed:
            admitted = self.buffer.admit()
            if self.recorder is not None:
                self.recorder.append(admitted)
            self._touch(self.settlement.in_stream(len(admitted)))
        self._discard_freed()

    def withdraw(self, simulation: int) -> None:
        """Take back what came of a simulation and was not trained on yet."""
        self.flush()
        self.num_withdrawn += self.buffer.withdraw(simulation)
        self.settlement.withdraw(simulation)
        self.validation.withdraw(simulation)
        if self.recorder is not None:
            self.recorder.withdraw(simulation)
        # What waited has room now, and nobody else would say so.
        self.flush()

    def _place_apart(self, connection: Connection, streak: Streak, slots: list[int]) -> Run:
        """A message of the streak that must not be settled together with those before it."""
        self.settle_streak(connection.track)
        run = self.assembly.place_streak(connection, streak.index, slots, 1)
        streak.pass_over()
        return run

    def _discard_freed(self) -> None:
        if self.settlement.freed:
            self.buffer.discard(self.settlement.freed)
            self.settlement.freed = []

    def _is_fit(self, slot: int) -> bool:
        arrays = self.buffer.slots.arrays
        return all(all_finite(arrays[name][slot : slot + 1]) for name in self._checked)

    def _accept(self, run: Run) -> None:
        if run.track.simulation in self.validation:
            self._hold_out(run)
        else:
            self._ready += run.slots
            self.settlement.accept(run)

    def _reject(self, run: Run) -> None:
        if self.nonfinite == "stop":
            simulation, time_step = run.track.simulation, self.numbering.label(run.indices.start)
            raise NonFiniteData(
                f"simulation {simulation} sent NaN or infinity in time step {time_step}, and training.nonfinite is "
                '"stop"; "reject" would leave such samples out'
            )
        self._touch(self.settlement.reject(run, REJECTED))

    def _hold_out(self, run: Run) -> None:
        arrays = self.buffer.slots.arrays
        present = {name: name not in run.absent for name in arrays}
        for index, slot in zip(run.indices, run.slots, strict=True):
            fields = {name: array[slot] for name, array in arrays.items()}
            self.validation.add(run.track.simulation, self.numbering.label(index), fields, present)
        if self.recorder is not None:
            self.recorder.append_held_out(run.slots)
        self._touch(self.settlement.set_apart(run))

    def _touch(self, connections: Sequence[Connection]) -> None:
        for connection in connections:
            self.touched[connection.peer] = connection
