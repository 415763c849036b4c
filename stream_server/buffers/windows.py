"""Windows: samples that are several time steps of one simulation, and how they share the slots of these steps.

Why: docs/decisions/0026-windows-by-first-step.md
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import SlotArray, State

WINDOWS = "windows"
"""The key of the state that only a buffer of windows has."""

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowShape:
    """The windows of a simulation: `length` steps each, `spacing` apart, one from every `stride`-th step on.

    Steps are counted from 0, whatever they are called: step i is labelled `first` + i × `every`. There are `num_steps`;
    None: nobody knows how many. A window is known by its first step.
    """

    length: int
    spacing: int = 1
    stride: int = 1
    first: int = 0
    every: int = 1
    num_steps: int | None = None

    @property
    def span(self) -> int:
        """Distance from the first to the last step of a window."""
        return (self.length - 1) * self.spacing

    def step(self, label: int) -> int:
        return (label - self.first) // self.every

    def steps(self, start: int) -> range:
        return range(start, start + self.span + 1, self.spacing)

    def starts(self, step: int) -> list[int]:
        """The windows that a step is in."""
        last = step if self.num_steps is None else min(step, self.num_steps - 1 - self.span)
        first = step - self.span
        if first < 0:
            first %= self.spacing
        return [start for start in range(first, last + 1, self.spacing) if start % self.stride == 0]

    def num_among(self, steps: Steps) -> int:
        return len(self.places_among(steps))

    def places_among(self, steps: Steps) -> npt.NDArray[np.int64]:
        """The windows that these distinct steps make, by their first steps: where each step of them is, (n, length)."""
        place = np.full(int(steps.max(initial=-1)) + 1, -1, np.int64)
        place[steps] = np.arange(len(steps))
        starts = np.arange(0, max(0, len(place) - self.span), self.stride)
        windows: npt.NDArray[np.int64] = place[starts[:, None] + np.arange(0, self.span + 1, self.spacing)]
        return windows[(windows >= 0).all(axis=1)]


@dataclass(slots=True)
class _Trajectory:
    """The steps that open windows of a simulation need: their `slots`, in the order in which they came.

    A window is open as long as it may still be made. `num_open` tells of each of these steps how many open windows it
    is in, `missing` of each open window that has such a step how many others have yet to come. A window that is
    `impossible` never gets all its steps; one in `late` was given up when so many were missing.
    """

    slots: dict[int, int] = field(default_factory=dict)
    num_open: dict[int, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    impossible: set[int] = field(default_factory=set)
    late: dict[int, int] = field(default_factory=dict)

    def arrive(self, shape: WindowShape, step: int, slot: int) -> tuple[list[int], int]:
        """Take a step in; returns the windows that are whole now, and how many it was too late for."""
        whole, num_open, num_late = [], 0, 0
        for start in shape.starts(step):
            if start in self.impossible:
                continue
            if start in self.late:
                self.late[start] -= 1
                num_late += not self.late[start]
                continue
            num_open += 1
            left = self.missing[start] = self.missing.get(start, shape.length) - 1
            if not left:
                whole.append(start)
        self.slots[step] = slot
        self.num_open[step] = num_open
        return whole, num_late

    def close(self, shape: WindowShape, start: int) -> list[int]:
        """Note that a window is not open any more; returns the slots that no open one needs now."""
        if self.missing.pop(start, None) is None:
            return []
        for step in (closed := [step for step in shape.steps(start) if step in self.slots]):
            self.num_open[step] -= 1
        return self.release(step for step in closed if not self.num_open[step])

    def leave_out(self, shape: WindowShape, step: int) -> list[int]:
        """Note that a step will never come; returns the slots that no open window needs now."""
        starts = shape.starts(step)
        self.impossible.update(starts)
        for start in starts:
            self.late.pop(start, None)
        return [slot for start in starts for slot in self.close(shape, start)]

    def give_up(self, shape: WindowShape, starts: Sequence[int]) -> list[int]:
        """Give up windows that are not made yet; returns the slots that no open one needs now."""
        self.late.update((start, self.missing.get(start, shape.length)) for start in starts)
        return [slot for start in starts for slot in self.close(shape, start)]

    def release(self, steps: Iterable[int]) -> list[int]:
        """Forget steps; returns their slots."""
        released = []
        for step in steps:
            del self.num_open[step]
            released.append(self.slots.pop(step))
        return released


class Windows:
    """The windows of a buffer and the slots that they share. For one thread at a time.

    A window goes by the slot of its first step: that is the number that policies and draws know, and its row in
    `slots`, shape (num_slots, length), has the slots of all its steps. A slot is in use as long as a window has it, a
    window that may still be made needs it, or it is held. At most `most_kept` slots are kept for windows that may still
    be made: of more, the simulation that has the most gives up the windows that need its oldest one.

    Attributes:
        num_made: windows that were made.
        num_late: by simulation, windows that were given up although their last step came in the end.
        num_used: slots in use.
    """

    def __init__(self, shape: WindowShape, num_slots: int, *, most_kept: int) -> None:
        self.shape = shape
        self.slots: SlotArray = np.zeros((num_slots, shape.length), np.intp)
        self.num_made = 0
        self.num_late: Counter[int] = Counter()
        self.num_used = 0
        self._most_kept = most_kept
        self._num_kept = 0
        self._uses = [0] * num_slots
        self._trajectories: defaultdict[int, _Trajectory] = defaultdict(_Trajectory)

    def take(self, simulation: int, label: int, slot: int) -> tuple[list[int], list[int]]:
        """Take a step in; returns the windows that it makes whole, in their order, and the slots that are out of use.

        The step's own slot is held, until `let_go`.
        """
        shape, step, trajectory = self.shape, self.shape.step(label), self._trajectories[simulation]
        starts, num_late = trajectory.arrive(shape, step, slot)
        if num_late:
            self.num_late[simulation] += num_late
        self._num_kept += 1
        self._use([slot, slot])
        complete = []
        for start in starts:
            window = [trajectory.slots[step] for step in shape.steps(start)]
            self.slots[window[0]] = window
            self._use(window)
            complete.append(window[0])
        self.num_made += len(complete)
        released = [] if trajectory.num_open[step] else trajectory.release([step])
        for start in starts:
            released += trajectory.close(shape, start)
        freed = self._unkeep(released)
        while self._num_kept > self._most_kept:
            largest = max(self._trajectories.values(), key=lambda trajectory: len(trajectory.slots))
            oldest = shape.starts(next(iter(largest.slots)))
            freed += self._unkeep(largest.give_up(shape, [start for start in oldest if start in largest.missing]))
        return complete, freed

    def leave_out(self, simulation: int, label: int) -> list[int]:
        """Note that a step will never come; returns the slots that are out of use now."""
        return self._unkeep(self._trajectories[simulation].leave_out(self.shape, self.shape.step(label)))

    def kept_of(self, simulation: int) -> dict[int, int]:
        """The slots of the steps of a simulation that windows need which may still be made, by label."""
        slots = self._trajectories[simulation].slots
        return {self.shape.first + step * self.shape.every: slot for step, slot in slots.items()}

    def give_up(self, simulation: int, labels: Iterable[int], is_settled: Callable[[int], bool]) -> list[int]:
        """Give up the windows with one of these steps and one that is not settled; returns the slots out of use now."""
        shape, trajectory, freed = self.shape, self._trajectories[simulation], []
        for step in map(shape.step, labels):
            starts = [
                start
                for start in shape.starts(step)
                if start not in trajectory.impossible
                and start not in trajectory.late
                and not all(map(is_settled, shape.steps(start)))
            ]
            freed += self._unkeep(trajectory.give_up(shape, starts))
        return freed

    def end(self, simulation: int) -> list[int]:
        """Note that nothing more comes of a simulation; returns the slots that are out of use now."""
        return self._unkeep(list(self._trajectories.pop(simulation, _Trajectory()).slots.values()))

    def end_all(self) -> list[int]:
        """Note that nothing more comes of any simulation; returns the slots that are out of use now."""
        return [slot for simulation in list(self._trajectories) for slot in self.end(simulation)]

    def let_go(self, slot: int) -> list[int]:
        """Let go of the slot of a step that was taken in; returns it if it is out of use now."""
        self._uses[slot] -= 1
        if self._uses[slot]:
            return []
        self.num_used -= 1
        return [slot]

    def drop(self, windows: Sequence[int] | SlotArray) -> list[int]:
        """Forget windows; returns the slots that are out of use now."""
        return [freed for slot in self.slots[windows].reshape(-1).tolist() for freed in self.let_go(slot)]

    def kept(self) -> SlotArray:
        """The slots of the steps that windows need which may still be made."""
        return np.array([slot for each in self._trajectories.values() for slot in each.slots.values()], np.intp)

    def num_made_by(self, steps: Iterable[tuple[int, int, int]]) -> int:
        """Number of windows that these steps, each a simulation, a label and a slot, would make; nothing changes."""
        trajectories, num = deepcopy(self._trajectories), 0
        for simulation, label, slot in steps:
            starts, _ = trajectories[simulation].arrive(self.shape, self.shape.step(label), slot)
            num += len(starts)
            for start in starts:
                trajectories[simulation].close(self.shape, start)
        return num

    def state_dict(self) -> State:
        """All but the windows, as copies; slots stand in the last column of `kept` alone."""
        trajectories = self._trajectories.items()

        def table(rows: Iterable[tuple[int, ...]], num_columns: int) -> npt.NDArray[np.int64]:
            return np.array(list(rows), np.int64).reshape(-1, num_columns)

        return {
            "kept": table(((of, *item) for of, each in trajectories for item in each.slots.items()), 3),
            "missing": table(((of, *item) for of, each in trajectories for item in each.missing.items()), 3),
            "late": table(((of, *item) for of, each in trajectories for item in each.late.items()), 3),
            "impossible": table(((of, start) for of, each in trajectories for start in sorted(each.impossible)), 2),
            "num_late": table(sorted(self.num_late.items()), 2),
            "num_made": self.num_made,
        }

    def load_state_dict(self, state: Mapping[str, Any], windows: SlotArray, held: Iterable[int]) -> None:
        """Continue where `state_dict` was called, with these `windows`, shape (n, length), and `held` slots."""
        self.slots[windows[:, 0]] = windows
        self._use(windows.reshape(-1).tolist())
        self._use(held)
        for name in ("missing", "late"):
            for simulation, start, num in state[name].tolist():
                getattr(self._trajectories[simulation], name)[start] = num
        for simulation, start in state["impossible"].tolist():
            self._trajectories[simulation].impossible.add(start)
        for simulation, step, slot in state["kept"].tolist():
            trajectory = self._trajectories[simulation]
            trajectory.slots[step] = slot
            trajectory.num_open[step] = sum(start in trajectory.missing for start in self.shape.starts(step))
        self._use(state["kept"][:, -1].tolist())
        self._num_kept = len(state["kept"])
        self.num_late = Counter(dict(state["num_late"].tolist()))
        self.num_made = state["num_made"]

    def _use(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.num_used += not self._uses[slot]
            self._uses[slot] += 1

    def _unkeep(self, slots: list[int]) -> list[int]:
        self._num_kept -= len(slots)
        return [freed for slot in slots for freed in self.let_go(slot)]
