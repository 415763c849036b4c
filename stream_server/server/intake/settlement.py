"""Settlement: the outcome of complete steps, and the progress of their simulations. Receiver thread."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from stream_server.buffers import Buffer
from stream_server.buffers.batch_memory import no_memory
from stream_server.errors import ConfigError, NonFiniteData
from stream_server.server.intake.attempts import AttemptState, Connection, StepRun
from stream_server.server.intake.credit import CreditPool
from stream_server.server.intake.filling import all_finite, side_by_side
from stream_server.server.intake.ledger import Ledger
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore

REJECTED = "nonfinite"
NUM_RESERVED_SLOTS = 64


class SampleRecorder(Protocol):
    """Records the accepted samples, in the order in which they go into the stream."""

    def append(self, slots: Sequence[int]) -> None: ...

    def append_held_out(self, slots: Sequence[int]) -> None: ...

    def finish(self, simulation: int) -> None: ...

    def end_trajectory(self, simulation: int, time_step: int) -> None: ...

    def withdraw(self, simulation: int) -> None: ...

    def position(self) -> int | None: ...

    def sync(self, position: int | None) -> int | None: ...


class StepObserver:
    """Looks at accepted steps as long as it `is_open`, and says in `warnings` what people should know of them."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._sent: set[int] = set()
        self._finished: dict[int, tuple[float, ...]] = {}
        self._is_told = False

    @property
    def warnings(self) -> list[str]:
        """Warnings about all simulations that have finished so far."""
        return []

    def note(self, run: StepRun) -> None:
        """Look at steps that were accepted; what is in their slots is what came."""
        self._sent.add(run.attempt.simulation)

    def finish(self, simulation: int, parameters: Iterable[float]) -> list[str]:
        """Note that a simulation has finished; gives what is to be told now, once."""
        if not self.is_open or simulation not in self._sent:
            return []
        self._finished[simulation] = tuple(parameters)
        warnings = [] if self._is_told else self.warnings
        self._is_told |= bool(warnings)
        return warnings


class Settlement:
    """Settles whole steps: they are accepted into the stream, held out, or rejected.

    Accepted steps are handed to the buffer once a turn, and wait in their order until it has room for them. `nonfinite`
    says what happens to samples with NaN or infinity: "reject", "keep" or "stop". `recorder`, if there is one, and
    `observers` are given what was accepted. Slots that are needed no more gather in `freed`, connections that may be
    owed an acknowledgement in `touched`, by peer, and in `changed` the simulations of which there is news;
    `has_complete_share`: others wait for some of it. `has_pressure`: some client rank has sent more than `max_unsaved`
    steps since the last checkpoint, and might soon forget what only it could send again.
    """

    def __init__(
        self,
        buffer: Buffer,
        validation: ValidationStore,
        credit: CreditPool,
        state: IntakeState,
        *,
        nonfinite: str,
        max_unsaved: int,
    ) -> None:
        self.buffer = buffer
        self.validation = validation
        self.credit = credit
        self.numbering = state.numbering
        self.nonfinite = nonfinite
        self.max_unsaved = max_unsaved
        self.recorder: SampleRecorder | None = None
        self.observers: Sequence[StepObserver] = ()
        self.has_pressure = False
        self.has_complete_share = False
        self.num_withdrawn = 0
        self.freed: list[int] = []
        self.touched: dict[bytes, Connection] = {}
        self.changed: set[int] = set()
        self._finished: list[int] = []
        self._ready: list[int] = []
        self._waiting: deque[StepRun] = deque()
        self._checked: list[str] = []
        self._reserved_slots: list[int] = []

    @property
    def has_waiting(self) -> bool:
        """Steps wait for room in the buffer."""
        return bool(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Steps that wait for room in the buffer."""
        return sum(len(run.slots) for run in self._waiting)

    def allocate(self, dtypes: Mapping[str, np.dtype]) -> None:
        """Make the arrays, unless they are there; `dtypes` are those of all fields.

        Raises:
            ConfigError: the system refuses the memory.
        """
        if not self.buffer.slots.arrays:
            try:
                self.buffer.slots.allocate(dict(dtypes))
            except MemoryError as error:
                raise ConfigError(no_memory(error)) from error
        self._checked = [name for name, dtype in dtypes.items() if dtype.kind in "fc"]

    def claim(self, num: int) -> list[int]:
        """Slots for `num` steps. They are taken from the buffer many at a time, and in order as far as possible."""
        if len(self._reserved_slots) < num:
            # Steps that were rejected in this turn have left their slots, but still take their clients' credit.
            self._discard_freed()
            num_missing = num - len(self._reserved_slots)
            self._reserved_slots += self.buffer.claim(max(num, NUM_RESERVED_SLOTS)) or self.buffer.claim(num_missing)
            self._reserved_slots.sort()
        slots = self._reserved_slots[:num]
        del self._reserved_slots[:num]
        assert len(slots) == num, "a step within its credit has no slot"
        return slots

    def settle(self, run: StepRun, *, finite: bool = False) -> None:
        """Accept or reject steps that are all there; those that are not known to be finite are looked at.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        slots = self.buffer.slots
        rows = side_by_side(run.slots) or np.array(run.slots)
        first, every, num = self.numbering.label(run.indices.start), self.numbering.every, len(run.slots)
        slots.simulation_ids[rows] = run.attempt.simulation
        slots.time_steps[rows] = first if num == 1 else first + every * run.indices.step * np.arange(num)
        for name in run.absent:
            slots.leave_out(name, run.slots)
        if finite or self.nonfinite == "keep":
            self.accept(run)
            return
        for single in map(run.single, range(len(run.slots))):
            if self._is_finite(single.slots[0]):
                self.accept(single)
            else:
                self.reject(single)

    def accept(self, run: StepRun) -> None:
        """Let steps wait for room in the buffer, or hold them out if they are of a validation simulation."""
        run.attempt.entry.accept(run.indices)
        for observer in self.observers:
            if observer.is_open:
                observer.note(run)
        if run.attempt.simulation in self.validation:
            self._hold_out(run)
        else:
            self._ready += run.slots
            run.attempt.num_waiting += len(run.slots)
            self._waiting.append(run)
        self._arrive(run)

    def reject(self, run: StepRun) -> None:
        """Settle steps with NaN or infinity, which are not fit to be trained on.

        Raises:
            NonFiniteData: the study is to stop then.
        """
        if self.nonfinite == "stop":
            simulation, time_step = run.attempt.simulation, self.numbering.label(run.indices.start)
            raise NonFiniteData(
                f"simulation {simulation} sent NaN or infinity in time step {time_step}, and training.nonfinite is "
                '"stop"; "reject" would leave such samples out'
            )
        run.attempt.entry.reject(run.indices, REJECTED)
        if run.attempt.simulation not in self.validation:
            for index in run.indices:
                self.buffer.leave_out(run.attempt.simulation, self.numbering.label(index))
        self._arrive(run)
        self.drop(run)

    def drop(self, run: StepRun) -> None:
        """Forget steps, as if they had not come."""
        self.freed += run.slots
        self._move_marks(run, len(run.slots))

    def enqueue_ready(self) -> None:
        """Append what was accepted in this turn to the backlog of the buffer."""
        if self._ready:
            self.buffer.enqueue(self._ready)
            self._ready = []

    def flush(self) -> None:
        """Give the buffer what is ready, and note what has found room in it."""
        self.enqueue_ready()
        if self._finished:
            # Only these: of one that was given up more may come after all, when an older checkpoint is restored.
            self.buffer.end(self._finished)
            self._finished = []
        if self._waiting:
            admitted = self.buffer.admit()
            if self.recorder is not None:
                self.recorder.append(admitted)
            self.in_stream(len(admitted))
        self._discard_freed()

    def in_stream(self, num: int) -> None:
        """Note that the buffer has taken the next `num` waiting steps: only now may they be acknowledged."""
        while num:
            run = self._waiting[0]
            part = min(num, len(run.slots))
            num -= part
            if part == len(run.slots):
                self._waiting.popleft()
            self._leave(run, part)
            del run.slots[:part]

    def withdraw(self, simulation: int) -> None:
        """Withdraw the samples of a simulation that were not trained on yet."""
        self.flush()
        self.num_withdrawn += self.buffer.withdraw(simulation)
        for run in [run for run in self._waiting if run.attempt.simulation == simulation]:
            self._waiting.remove(run)
            self._leave(run, len(run.slots))
        self.validation.withdraw(simulation)
        if self.recorder is not None:
            self.recorder.withdraw(simulation)
        # Waiting steps have room now, and nothing else would move them.
        self.flush()

    def finish(self, simulation: int) -> None:
        """Note that every step of a simulation is settled, on all ranks."""
        self._finished.append(simulation)
        if simulation in self.validation:
            self.validation.complete(simulation)
        if self.recorder is not None:
            self.recorder.finish(simulation)

    def end(self, simulation: int) -> None:
        """Note that no further step of a simulation comes, though some may be missing."""
        self._finished.append(simulation)

    def restore_waiting(self, ledger: Ledger, simulations: Iterable[int]) -> None:
        """Let steps of these simulations, which waited in an earlier incarnation in this order, wait again."""
        for simulation in simulations:
            attempt = AttemptState(simulation=simulation, attempt=-1, entry=ledger[simulation])
            self._waiting.append(StepRun(attempt, -1, range(0), [-1], (), []))
            self.credit.occupy(1)

    def check_share(self, attempt: AttemptState) -> None:
        """See whether this rank's share of a simulation is complete now."""
        expected = attempt.num_expected
        if expected is not None and not attempt.share_complete and len(attempt.entry.settled) >= expected:
            attempt.share_complete = attempt.entry.complete = True
            attempt.entry.total = attempt.total
            self.has_complete_share = True
            # Client ranks that have ended wait for this word.
            self.touched |= {connection.peer: connection for connection in attempt.connections.values()}
            self.release(attempt)

    def release(self, attempt: AttemptState) -> None:
        """Take back the credit of an attempt that needs none any more; what of it is half-assembled goes."""
        self.credit.release(attempt)
        self.freed += [step.slot for step in attempt.partial_steps.values()]
        attempt.partial_steps.clear()

    def _is_finite(self, slot: int) -> bool:
        slots = self.buffer.slots
        return all(all_finite(slots.value(name, slot)) for name in self._checked)

    def _hold_out(self, run: StepRun) -> None:
        for slot in run.slots:
            self.validation.keep(self.buffer.slots, slot)
        if self.recorder is not None:
            self.recorder.append_held_out(run.slots)
        self.drop(run)

    def _arrive(self, run: StepRun) -> None:
        attempt = run.attempt
        attempt.received += len(run.indices)
        attempt.num_unsaved += len(run.indices)
        self.has_pressure |= attempt.num_unsaved > self.max_unsaved * attempt.layout.num_ranks
        self.changed.add(attempt.simulation)
        self.check_share(attempt)

    def _leave(self, run: StepRun, num: int) -> None:
        self.credit.leave(run, num)
        if run.reservation == run.attempt.reservation:
            self.changed.add(run.attempt.simulation)
        self._move_marks(run, num)

    def _move_marks(self, run: StepRun, num: int) -> None:
        for connection, message in run.origins:
            connection.move_mark(message, num)
            self.touched[connection.peer] = connection

    def _discard_freed(self) -> None:
        if self.freed:
            self.buffer.discard(self.freed)
            self.freed = []
