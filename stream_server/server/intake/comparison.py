"""Compares what the attempts of a simulation send, and watches what all simulations send. Receiver thread.

Why: docs/decisions/0016-equal-simulations.md
Why: docs/decisions/0017-attempts-that-differ.md
"""

from collections.abc import Iterable

import numpy as np
from xxhash import xxh3_64_intdigest

from stream_server.buffers import Slots
from stream_server.server.intake.attempts import AttemptState, StepRun
from stream_server.server.intake.filling import Array
from stream_server.server.intake.settlement import Settlement, StepObserver
from stream_server.server.intake.state import IntakeState
from stream_server.wording import listed

ENOUGH = 3
# A checksum costs a step of 4 kB more than all else that is done for it, and a study of one simulation never stops
# taking them: all of the first 128 steps, and 64 of each twice as many.
NUM_FIRST_BITS = 7
NUM_ALWAYS = 100
Step = dict[str, Array]
"""The fields of a time step, without those that are not there."""


class AttemptComparison:
    """Finds out whether the attempts of a simulation go along one trajectory, as its samples are taken to do.

    A new attempt is to send some steps again that are in memory anyway: those of windows that may still be made, or
    else the last one. No window is made of two trajectories, and people are told.
    """

    def __init__(self, state: IntakeState, settlement: Settlement) -> None:
        self.state = state
        self.settlement = settlement

    def begin(self, attempt: AttemptState) -> None:
        """Choose the steps that a new attempt is to send again; none if nothing more is expected of it."""
        if attempt.entry.settled and not attempt.share_complete:
            self.settlement.enqueue_ready()
            attempt.to_compare = set(map(self.state.numbering.index, self._earlier(attempt.simulation)))

    def compare(self, run: StepRun) -> None:
        """Compare a step that came again, and drop it."""
        attempt, numbering = run.attempt, self.state.numbering
        time_step = numbering.label(run.indices.start)
        # It may have been trained and let go of meanwhile.
        earlier = self._earlier(attempt.simulation).get(time_step)
        slots = self.settlement.buffer.slots
        sent = {name: slots.value(name, run.slots[0]) for name in slots.arrays if name not in run.absent}
        if earlier is not None and not attempt.differs and (difference := _difference(earlier, sent)):
            attempt.differs = f"time step {time_step}: {difference}"
            self.settlement.buffer.part(
                attempt.simulation, map(numbering.label, attempt.to_compare), attempt.entry.settled.__contains__
            )
            if self.settlement.recorder is not None:
                last = int(attempt.entry.settled.array()[-1])
                self.settlement.recorder.end_trajectory(attempt.simulation, numbering.label(last))
        attempt.to_compare.discard(run.indices.start)
        attempt.received += 1
        self.state.ledger.duplicates += 1
        self.settlement.changed.add(attempt.simulation)
        self.settlement.drop(run)

    def _earlier(self, simulation: int) -> dict[int, Step]:
        """The steps to compare that are here now, by time step."""
        buffer, validation = self.settlement.buffer, self.settlement.validation
        if simulation in validation:
            return validation.last_step(simulation)
        slots = buffer.slots
        return {
            time_step: {name: slots.value(name, slot) for name in slots.arrays if slots.present[name][slot]}
            for time_step, slot in buffer.steps_to_compare(simulation).items()
        }


class EqualSimulations(StepObserver):
    """Compares the first time steps of all simulations and some of the later ones, until two of them differ.

    A program that misspells its parameters, or reads them from elsewhere, computes the same for all of them. Only the
    checksums of steps are kept, and none any more once there was a difference: mostly after one simulation. Time steps
    that all have, such as the initial state, are no difference. `is_open`: all were the same so far.

    Of some ranks each gets other steps of each simulation, `stride` apart: nothing is told before each step that is
    compared came of two at least.
    """

    def __init__(self, slots: Slots, *, is_open: bool, stride: int) -> None:
        super().__init__(is_open=is_open)
        self.slots = slots
        self.stride = stride
        self._checksums: dict[int, int] = {}
        self._came_of_one: dict[int, int] = {}

    @property
    def warnings(self) -> list[str]:
        num = len(self._finished)
        if not self.is_open or self._came_of_one or num < ENOUGH or len(set(self._finished.values())) < num:
            return []
        return [
            f"all {num} simulations that have finished sent the same values in every time step that was "
            "compared, although their parameters differ: nothing can be learned from these. Does the program read its "
            "parameters by the names that study.json gives them, and are its values large enough for the dtypes of the "
            "fields there?"
        ]

    def note(self, run: StepRun) -> None:
        for index, slot in zip(run.indices, run.slots, strict=True):
            if not self._is_compared(index):
                continue
            super().note(run)
            checksum = 0
            for name in self.slots.arrays:
                if name not in run.absent:
                    values = np.ascontiguousarray(self.slots.value(name, slot))
                    checksum = xxh3_64_intdigest(values.data, checksum)
            if index not in self._checksums:
                self._checksums[index] = checksum
                self._came_of_one[index] = run.attempt.simulation
            elif self._checksums[index] != checksum:
                self.is_open = False
                self._checksums.clear()
                self._came_of_one.clear()
                return
            elif self._came_of_one.get(index) != run.attempt.simulation:
                self._came_of_one.pop(index, None)

    def _is_compared(self, index: int) -> bool:
        """Whatever it came with: messages have different numbers of steps."""
        place = index // self.stride
        every = 1 << max(0, place.bit_length() - NUM_FIRST_BITS)
        # The labels of time steps may be far apart.
        return not place % every or index in self._checksums or len(self._checksums) < NUM_ALWAYS


class MissingFields(StepObserver):
    """Watches for optional fields that no simulation sends, as those whose names a program misspells.

    A batch has zeros in their place, which a network would learn. `is_open`: one of them came in no time step so far.
    """

    def __init__(self, names: Iterable[str], *, num_ranks: int) -> None:
        self._names = set(names)
        super().__init__(is_open=bool(self._names))
        # Of each simulation this rank may see one time step of `num_ranks`.
        self._enough = ENOUGH * num_ranks

    @property
    def warnings(self) -> list[str]:
        if not self.is_open or len(self._finished) < self._enough:
            return []
        return [
            f"no time step that was received has {listed(sorted(self._names))}, which study.fields says is optional: "
            "process_batch has zeros there, and process_simulation_data nothing. Does the program send it, by this "
            "name? In C and Fortran stream_put returns an error for a name that the study does not have"
        ]

    def note(self, run: StepRun) -> None:
        super().note(run)
        self._names.intersection_update(run.absent)
        self.is_open = bool(self._names)


def _difference(earlier: Step, sent: Step) -> str:
    """The first difference between two steps, in words; "" if there is none."""
    for name in earlier.keys() | sent.keys():
        if name not in earlier or name not in sent:
            return f"field {name} is in one of them alone"
        one, other = earlier[name], sent[name]
        if one.shape != other.shape:
            return f"field {name} has the shape {other.shape}, and had {one.shape}"
        different = np.atleast_1d((one != other) & ~((one != one) & (other != other)))
        if different.any():
            at = tuple(map(int, np.argwhere(different)[0]))
            where = f"{name}[{', '.join(map(str, at))}]" if one.ndim else name
            return f"{where} is {np.atleast_1d(other)[at]!s}, and was {np.atleast_1d(one)[at]!s}"
    return ""
