"""The buffer of a study whose samples are windows of several time steps.

Why: docs/decisions/0026-windows-by-first-step.md
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.frozen import FurtherState, SlotRetention
from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import Policy, SlotArray, State
from stream_server.buffers.slots import Slots
from stream_server.buffers.windows import WINDOWS, Windows, WindowShape


class WindowBuffer(Buffer):
    """A buffer whose policy draws, keeps and evicts windows, each by the slot of its first step; slots hold steps.

    A step is in the backlog until it was taken in and every window that it makes whole has found room in the policy.
    Then it is admitted: also one that makes no window, since it waits for others of its simulation, which could not
    come if it kept its credit. So windows wait for room only if a step in the backlog has made them, and these steps
    are in the order in which they came.

    `most_kept` slots are for steps that are admitted and that only windows need which may still be made: see `Windows`.
    Beside them each sample of a full policy may have slots of its own.
    """

    windows: Windows

    def __init__(
        self,
        policy: Policy,
        slots: Slots,
        *,
        shape: WindowShape,
        most_kept: int,
        spare: int = 0,
    ) -> None:
        super().__init__(policy, slots, spare=spare)
        self.windows = Windows(shape, slots.num_slots, most_kept=most_kept)
        self._most_slots = policy.capacity * shape.length + most_kept + spare
        self._num_taken = 0
        self._complete: list[int] = []
        self._ended: set[int] = set()
        self._observed = np.zeros(slots.num_slots, bool)

    @property
    def num_never_drawn(self) -> int:
        """Windows that were never drawn: in the population, waiting for room, or of steps that wait."""
        with self._lock:
            return self.policy.num_unseen + len(self._complete) + self.windows.num_made_by(self._not_taken())

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The axis of the steps of a window."""
        return (self.windows.shape.length,)

    def rows_of(self, samples: SlotArray) -> SlotArray:
        """The slots of the time steps of each window, shape (num, length)."""
        return self.windows.slots.take(samples, 0)

    @property
    def num_made(self) -> int:
        """Windows that wait for room in the policy."""
        return len(self._complete)

    def _admit(self, most: int) -> list[int]:
        """Take steps of the backlog in as far as there is room for their windows, of which at most `most` are put.

        Returns the steps that are done with, which may be free already: nobody fills them before the receiver claims
        them.
        """
        admitted: list[int] = []
        num_put = 0
        while True:
            room = min(self.policy.room, most - num_put)
            while self._may_take() and (not self._complete or len(self._complete) < room):
                self._take()
            put = self._complete[:room]
            del self._complete[:room]
            if put:
                self._put_samples(put)
                num_put += len(put)
            if self._complete:
                break
            admitted += self._leave_backlog()
            if not self._may_take():
                break
        if num_put:
            self._gate.wake_if_ready()
        return admitted

    def _withdraw(self, simulation_id: int) -> int:
        ids = self.slots.simulation_ids
        waiting = [slot for slot in self._backlog[self._num_taken :] if ids[slot] == simulation_id]
        num_old = 0 if self._retention is None else self._retention.num_waiting
        old = set(self._backlog[self._num_taken : self._num_taken + num_old])
        for slot in waiting:
            complete, freed = self.windows.take(simulation_id, int(self.slots.time_steps[slot]), slot)
            self._complete += complete
            self._free_slots(freed)
        if self._retention is not None:
            self._retention.num_waiting -= len(old.intersection(waiting))
        taken = [slot for slot in self._backlog[: self._num_taken] if ids[slot] == simulation_id]
        gone = [window for window in self._complete if ids[window] == simulation_id]
        self._complete = [window for window in self._complete if ids[window] != simulation_id]
        self._backlog = [slot for slot in self._backlog if ids[slot] != simulation_id]
        self._num_taken -= len(taken)
        windows = self.policy.slots()
        windows = windows[ids[windows] == simulation_id]
        num_unseen = self.policy.remove(windows)
        self._free(gone)
        self._free(self._pins.retire(windows))
        self._free_slots(self.windows.end(simulation_id))
        self._free_slots([freed for slot in (*taken, *waiting) for freed in self.windows.let_go(slot)])
        return len(gone) + num_unseen

    def steps_to_compare(self, simulation_id: int) -> dict[int, int]:
        """Steps of windows that may still be made."""
        with self._lock:
            waiting = {label: slot for simulation, label, slot in self._not_taken() if simulation == simulation_id}
            return self.windows.kept_of(simulation_id) | waiting

    def part(self, simulation_id: int, time_steps: Iterable[int], is_settled: Callable[[int], bool]) -> None:
        with self._lock:
            self._free_slots(self.windows.give_up(simulation_id, time_steps, is_settled))

    def leave_out(self, simulation_id: int, time_step: int) -> None:
        with self._lock:
            self._free_slots(self.windows.leave_out(simulation_id, time_step))

    def end(self, simulation_ids: Sequence[int]) -> None:
        with self._lock:
            self._ended.update(simulation_ids)
            left = {simulation for simulation, _, _ in self._not_taken()}
            for simulation in self._ended - left:
                self._end(simulation)

    def observe(self, draw: Draw) -> SlotArray:
        slots = np.unique(self.rows_of(draw.slots))
        new = slots[~self._observed[slots]]
        self._observed[new] = True
        return new

    def _num_admissible(self) -> int:
        return min(len(self._complete), self.policy.room) if self._complete else int(self._may_take())

    def _may_take(self) -> bool:
        if len(self._backlog) == self._num_taken:
            return False
        return self._retention is None or self._retention.num_admissible(self.windows.num_used) > 0

    def _take(self) -> None:
        """Take the next step of the backlog in."""
        slot = self._backlog[self._num_taken]
        simulation = int(self.slots.simulation_ids[slot])
        self._num_taken += 1
        if self._retention is not None:
            self._retention.admit(1)
        self._observed[slot] = False
        complete, freed = self.windows.take(simulation, int(self.slots.time_steps[slot]), slot)
        self._complete += complete
        self._free_slots(freed)
        if simulation in self._ended and all(simulation != other for other, _, _ in self._not_taken()):
            self._end(simulation)

    def _leave_backlog(self) -> list[int]:
        """Let the steps leave whose windows have all found room."""
        left = self._backlog[: self._num_taken]
        del self._backlog[: self._num_taken]
        self._num_taken = 0
        self._free_slots([freed for slot in left for freed in self.windows.let_go(slot)])
        return left

    def _not_taken(self) -> Iterator[tuple[int, int, int]]:
        """The simulation, label and slot of each step of the backlog that was not taken in."""
        for slot in islice(self._backlog, self._num_taken, None):
            yield int(self.slots.simulation_ids[slot]), int(self.slots.time_steps[slot]), slot

    def _end(self, simulation: int) -> None:
        self._ended.discard(simulation)
        self._free_slots(self.windows.end(simulation))

    def _end_all(self) -> None:
        self._ended.clear()
        self._free_slots(self.windows.end_all())

    def _free(self, samples: Sequence[int]) -> None:
        self._free_slots(self.windows.drop(samples))

    def _free_slots(self, slots: list[int]) -> None:
        if slots:
            super()._free(slots)

    def _freeze(self, frozen: npt.NDArray[np.bool_]) -> tuple[SlotRetention, FurtherState]:
        complete, num_taken, state = self._complete.copy(), self._num_taken, self.windows.state_dict()
        ended, observed = sorted(self._ended), self._observed.copy()
        held = [self.policy.slots(), np.array(complete, np.intp), *(draw.slots for draw in self._pins.draws())]
        first = np.unique(np.concatenate(held))
        windows = self.windows.slots[first]
        frozen[windows] = True
        frozen[state["kept"][:, -1]] = True
        rows = np.flatnonzero(frozen)

        def further(row_of: npt.NDArray[np.int64]) -> State:
            kept = state["kept"].copy()
            kept[:, -1] = row_of[kept[:, -1]]
            return {
                WINDOWS: {
                    **state,
                    "kept": kept,
                    "windows": row_of[windows],
                    "made": row_of[np.array(complete, np.intp)],
                    "num_taken": num_taken,
                    "ended": ended,
                    "observed": observed[rows],
                }
            }

        num_waiting = len(self._backlog) - num_taken
        return SlotRetention(frozen, num_waiting=num_waiting, limit=self._most_slots), further

    def _load(self, state: State) -> None:
        saved = state[WINDOWS]
        self._num_taken = saved["num_taken"]
        self._complete = np.asarray(saved["made"]).tolist()
        self._ended = set(saved["ended"])
        self._observed[: len(saved["observed"])] = saved["observed"]
        self.windows.load_state_dict(saved, np.asarray(saved["windows"], np.intp), self._backlog[: self._num_taken])

    def _retired(self, state: State) -> SlotArray:
        windows = np.asarray(state[WINDOWS]["windows"], np.intp)[:, 0]
        return windows[~np.isin(windows, [*self.policy.slots(), *self._complete])]
