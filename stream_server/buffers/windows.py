"""Windows: samples that are several time steps of one simulation, and how they share the slots of these steps."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import SlotArray, State

WINDOWS = "windows"
"""The key of the state that only a buffer of windows has."""

ONE_BLOCK = 2**62
"""The size of a block that has all windows of a simulation."""

NO_BLOCK = -1

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowShape:
    """The windows of a simulation: `length` steps each, `spacing` apart, one from every `stride`-th step on.

    Steps are counted from 0, whatever they are called: step i is labelled `first` + i × `every`. There are `num_steps`;
    None: nobody knows how many. A window is known by its first step.

    Block b has the windows that begin at steps from b × `block` on, up to the next one: they are made on one rank.
    """

    length: int
    spacing: int = 1
    stride: int = 1
    first: int = 0
    every: int = 1
    num_steps: int | None = None
    block: int = ONE_BLOCK

    @property
    def span(self) -> int:
        """How far the last step of a window is from its first."""
        return (self.length - 1) * self.spacing

    def step(self, label: int) -> int:
        """The step of this label."""
        return (label - self.first) // self.every

    def steps(self, start: int) -> range:
        """The steps of the window that begins at step `start`."""
        return range(start, start + self.span + 1, self.spacing)

    def blocks(self, step: int) -> range:
        """The blocks whose windows may have a step."""
        return range(max(0, step - self.span) // self.block, step // self.block + 1)

    def starts_in(self, block: int, step: int) -> list[int]:
        """The windows of a block that a step is in."""
        starts = self.starts(step)
        return starts if self.block == ONE_BLOCK else [start for start in starts if start // self.block == block]

    def starts(self, step: int) -> list[int]:
        """The windows that a step is in."""
        last = step if self.num_steps is None else min(step, self.num_steps - 1 - self.span)
        first = step - self.span
        if first < 0:
            first %= self.spacing
        return [start for start in range(first, last + 1, self.spacing) if start % self.stride == 0]

    def num_among(self, steps: Steps) -> int:
        """How many windows these distinct steps make."""
        return len(self.places_among(steps))

    def starts_among(self, steps: Steps) -> Steps:
        """The windows that these distinct steps make."""
        return steps[self.places_among(steps)[:, 0]]

    def places_among(self, steps: Steps) -> npt.NDArray[np.int64]:
        """The windows that these distinct steps make, by their first steps: where each step of them is, (n, length)."""
        place = np.full(int(steps.max(initial=-1)) + 1, -1, np.int64)
        place[steps] = np.arange(len(steps))
        starts = np.arange(0, max(0, len(place) - self.span), self.stride)
        windows: npt.NDArray[np.int64] = place[starts[:, None] + np.arange(0, self.span + 1, self.spacing)]
        return windows[(windows >= 0).all(axis=1)]


@dataclass(slots=True)
class _Trajectory:
    """The steps that open windows of one `block` of a simulation need: their `slots`, in the order in which they came.

    A window is open as long as it may still be made. `num_open` tells of each of these steps how many open windows it
    is in, `missing` of each open window that has such a step how many others have yet to come. A window that is
    `impossible` never gets all its steps; one in `late` was given up when so many were missing.
    """

    block: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    num_open: dict[int, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    impossible: set[int] = field(default_factory=set)
    late: dict[int, int] = field(default_factory=dict)

    def arrive(self, shape: WindowShape, step: int, slot: int) -> tuple[list[int], int]:
        """Take a step in; gives the windows that are whole now, and how many it was too late for."""
        whole, num_open, num_late = [], 0, 0
        for start in shape.starts_in(self.block, step):
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
        """Note that a window is not open any more; gives the slots that no open one needs now."""
        if self.missing.pop(start, None) is None:
            return []
        for step in (closed := [step for step in shape.steps(start) if step in self.slots]):
            self.num_open[step] -= 1
        return self.release(step for step in closed if not self.num_open[step])

    def leave_out(self, shape: WindowShape, step: int) -> list[int]:
        """Note that a step will never come; gives the slots that no open window needs now."""
        starts = shape.starts_in(self.block, step)
        self.impossible.update(starts)
        for start in starts:
            self.late.pop(start, None)
        return [slot for start in starts for slot in self.close(shape, start)]

    def give_up(self, shape: WindowShape, starts: Sequence[int]) -> list[int]:
        """Give up windows that are not made yet; gives the slots that no open one needs now."""
        self.late.update((start, self.missing.get(start, shape.length)) for start in starts)
        return [slot for start in starts for slot in self.close(shape, start)]

    def release(self, steps: Iterable[int]) -> list[int]:
        """Forget steps; gives their slots."""
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

    Only windows of blocks that are `own` are made; the function is given a simulation and a block.

    Attributes:
        num_made: windows that were made.
        num_late: by simulation and block, windows that were given up although their last step came in the end.
        num_used: slots in use.
        repeated_steps: by simulation and block, steps that the block has had, and ignores when they come again.
        only_for_block: by slot of the backlog, the one block of this rank that the step is for, although two have
            windows with it; NO_BLOCK if neither needs it any more.

    Both are empty until a restart brings two neighbouring blocks from two ranks to one. An example: windows of 5 steps
    that begin at each step, in blocks of 100. Step 101 is in windows that begin at 97 to 99, of block 0, and at 100 and
    101, of block 1. The checkpoint has it on the rank of block 0, but not yet on that of block 1. After a restart on
    one rank, the client sends it again: `repeated_steps` has it for block 0, so block 1 alone makes windows with it.
    """

    def __init__(
        self, shape: WindowShape, num_slots: int, *, most_kept: int, own: Callable[[int, int], bool] | None = None
    ) -> None:
        self.shape = shape
        self.slots: SlotArray = np.zeros((num_slots, shape.length), np.intp)
        self.num_made = 0
        self.num_late: Counter[tuple[int, int]] = Counter()
        self.num_used = 0
        self.only_for_block: dict[int, int] = {}
        self.repeated_steps: dict[tuple[int, int], set[int]] = {}
        self._own = own
        self._most_kept = most_kept
        self._num_kept = 0
        self._uses = [0] * num_slots
        self._trajectories: dict[int, dict[int, _Trajectory]] = {}

    def take(self, simulation: int, label: int, slot: int) -> tuple[list[int], list[int]]:
        """Take a step in; gives the windows that it makes whole, in their order, and the slots that are out of use.

        The step's own slot is held, until `let_go`.
        """
        made: list[int] = []
        freed: list[int] = []
        step = self.shape.step(label)
        self._use([slot])
        of_blocks = self._wanting(self._trajectories, simulation, step, self.only_for_block.get(slot))
        lacking = self._lacking(simulation, step, of_blocks)
        if len(lacking) < len(of_blocks):
            self.only_for_block[slot] = lacking[0].block if lacking else NO_BLOCK
            for trajectory in of_blocks:
                self.repeated_steps.get((simulation, trajectory.block), set()).discard(step)
        for trajectory in lacking:
            made_in_block, released = self._arrive(trajectory, simulation, step, slot)
            made += made_in_block
            freed += self._unkeep(released)
        self.num_made += len(made)
        while self._num_kept > self._most_kept:
            largest = max(self._all(), key=lambda it: len(it.slots))
            starts = self.shape.starts_in(largest.block, next(iter(largest.slots)))
            freed += self._unkeep(largest.give_up(self.shape, [it for it in starts if it in largest.missing]))
        return made, freed

    def is_counted(self, simulation: int, label: int, slot: int) -> bool:
        """Whether a step that is in a slot for the backlog is counted here: it is with the first block that has it."""
        if self._own is None:
            return True
        return self._is_for(simulation, self.shape.blocks(self.shape.step(label))[0], slot)

    def is_observed_here(self, simulation: int, label: int, slot: int) -> bool:
        """Whether a step that was just taken in is observed here: it is with the first window that has it."""
        if self._own is None:
            return True
        starts = self.shape.starts(self.shape.step(label))
        return bool(starts) and self._is_for(simulation, starts[0] // self.shape.block, slot)

    def num_among(self, simulation: int, steps: Steps) -> int:
        """How many windows of this rank these distinct steps of a simulation make."""
        blocks, nums = np.unique(self.shape.starts_among(steps) // self.shape.block, return_counts=True)
        of_blocks = dict(zip(blocks.tolist(), nums.tolist(), strict=True))
        for (of, block), repeated in self.repeated_steps.items():
            if of == simulation:
                starts = self.shape.starts_among(np.union1d(steps, np.array(list(repeated), np.int64)))
                of_blocks[block] = int(np.count_nonzero(starts // self.shape.block == block))
        return sum(num for block, num in of_blocks.items() if self._is_own(simulation, block))

    def num_counted_unsettled(self, simulation: int, settled: Steps) -> int:
        """How many steps are counted here, though they are not among the `settled` ones until they come again."""
        return sum(
            self.shape.blocks(step)[0] == block
            for (of, block), repeated in self.repeated_steps.items()
            if of == simulation and self._is_own(simulation, block)
            for step in repeated.difference(settled.tolist())
        )

    def late(self) -> Counter[int]:
        """By simulation, how many windows were given up although their last step came in the end."""
        late: Counter[int] = Counter()
        for (simulation, _), num in self.num_late.items():
            late[simulation] += num
        return late

    def leave_out(self, simulation: int, label: int) -> list[int]:
        """Note that a step will never come; gives the slots that are out of use now."""
        step = self.shape.step(label)
        of_blocks = self._wanting(self._trajectories, simulation, step, None)
        lacking = self._lacking(simulation, step, of_blocks)
        return [freed for it in lacking for freed in self._unkeep(it.leave_out(self.shape, step))]

    def kept_of(self, simulation: int) -> dict[int, int]:
        """The slots of the steps of a simulation that windows need which may still be made, by label."""
        return {
            self.shape.first + step * self.shape.every: slot
            for trajectory in self._trajectories.get(simulation, {}).values()
            for step, slot in trajectory.slots.items()
        }

    def give_up(self, simulation: int, labels: Iterable[int], is_settled: Callable[[int], bool]) -> list[int]:
        """Give up the windows with one of these steps and one that is not settled; gives the slots out of use now."""
        shape, freed = self.shape, []
        for step in map(shape.step, labels):
            for trajectory in self._wanting(self._trajectories, simulation, step, None):
                starts = [
                    start
                    for start in shape.starts_in(trajectory.block, step)
                    if start not in trajectory.impossible
                    and start not in trajectory.late
                    and not all(map(is_settled, shape.steps(start)))
                ]
                freed += self._unkeep(trajectory.give_up(shape, starts))
        return freed

    def end(self, simulation: int) -> list[int]:
        """Note that nothing more comes of a simulation; gives the slots that are out of use now."""
        of_blocks = self._trajectories.pop(simulation, {})
        return [freed for it in of_blocks.values() for freed in self._unkeep(list(it.slots.values()))]

    def end_all(self) -> list[int]:
        """Note that nothing more comes of any simulation; gives the slots that are out of use now."""
        return [slot for simulation in list(self._trajectories) for slot in self.end(simulation)]

    def let_go(self, slot: int) -> list[int]:
        """Let go of the slot of a step that was taken in; gives it if it is out of use now."""
        self._uses[slot] -= 1
        if self._uses[slot]:
            return []
        self.num_used -= 1
        self.only_for_block.pop(slot, None)
        return [slot]

    def drop(self, windows: Sequence[int] | SlotArray) -> list[int]:
        """Forget windows; gives the slots that are out of use now."""
        return [freed for slot in self.slots[windows].reshape(-1).tolist() for freed in self.let_go(slot)]

    def kept(self) -> SlotArray:
        """The slots of the steps that windows need which may still be made."""
        return np.unique(np.array([slot for it in self._all() for slot in it.slots.values()], np.intp))

    def num_made_by(self, steps: Iterable[tuple[int, int, int]]) -> int:
        """How many windows these steps, each a simulation, a label and a slot, would make; nothing changes."""
        (trajectories, repeated), num = deepcopy((self._trajectories, self.repeated_steps)), 0
        for simulation, label, slot in steps:
            step = self.shape.step(label)
            for trajectory in self._wanting(trajectories, simulation, step, self.only_for_block.get(slot)):
                if step in repeated.get((simulation, trajectory.block), ()):
                    repeated[simulation, trajectory.block].remove(step)
                    continue
                starts, _ = trajectory.arrive(self.shape, step, slot)
                num += len(starts)
                for start in starts:
                    trajectory.close(self.shape, start)
        return num

    def state_dict(self) -> State:
        """All but the windows, as copies; slots stand in the last columns of `kept` and `only_for_block` alone."""
        of_blocks = [(simulation, it) for simulation, blocks in self._trajectories.items() for it in blocks.values()]

        def table(rows: Iterable[tuple[int, ...]], num_columns: int) -> npt.NDArray[np.int64]:
            return np.array(list(rows), np.int64).reshape(-1, num_columns)

        return {
            "kept": table(((of, it.block, *item) for of, it in of_blocks for item in it.slots.items()), 4),
            "missing": table(((of, *item) for of, it in of_blocks for item in it.missing.items()), 3),
            "late": table(((of, *item) for of, it in of_blocks for item in it.late.items()), 3),
            "impossible": table(((of, start) for of, it in of_blocks for start in sorted(it.impossible)), 2),
            "repeated_steps": table(
                ((*of_block, step) for of_block, steps in self.repeated_steps.items() for step in sorted(steps)), 3
            ),
            "num_late": table(((*of_block, num) for of_block, num in sorted(self.num_late.items())), 3),
            "only_for_block": table(((block, slot) for slot, block in self.only_for_block.items()), 2),
            "num_made": self.num_made,
        }

    def load_state_dict(self, state: Mapping[str, Any], windows: SlotArray, held: Iterable[int]) -> None:
        """Continue where `state_dict` was called, with these `windows`, shape (n, length), and `held` slots."""
        size = self.shape.block
        self.slots[windows[:, 0]] = windows
        self._use(windows.reshape(-1).tolist())
        self._use(held)
        for name in ("missing", "late"):
            for simulation, start, num in state[name].tolist():
                getattr(self._trajectory(simulation, start // size), name)[start] = num
        for simulation, start in state["impossible"].tolist():
            self._trajectory(simulation, start // size).impossible.add(start)
        for simulation, block, step in state["repeated_steps"].tolist():
            self.repeated_steps.setdefault((simulation, block), set()).add(step)
        for simulation, block, step, slot in state["kept"].tolist():
            trajectory = self._trajectory(simulation, block)
            trajectory.slots[step] = slot
            starts = self.shape.starts_in(block, step)
            trajectory.num_open[step] = sum(start in trajectory.missing for start in starts)
        self._use(state["kept"][:, -1].tolist())
        self._num_kept = len(state["kept"])
        self.num_late = Counter({(simulation, block): num for simulation, block, num in state["num_late"].tolist()})
        self.only_for_block = {slot: block for block, slot in state["only_for_block"].tolist()}
        self.num_made = state["num_made"]

    def _lacking(self, simulation: int, step: int, of_blocks: list[_Trajectory]) -> list[_Trajectory]:
        """The blocks of `of_blocks` that have not had this step before."""
        if not self.repeated_steps:
            return of_blocks
        return [it for it in of_blocks if step not in self.repeated_steps.get((simulation, it.block), ())]

    def _is_own(self, simulation: int, block: int) -> bool:
        return self._own is None or self._own(simulation, block)

    def _is_for(self, simulation: int, block: int, slot: int) -> bool:
        return self._is_own(simulation, block) and self.only_for_block.get(slot, block) == block

    def _wanting(
        self, trajectories: dict[int, dict[int, _Trajectory]], simulation: int, step: int, only_for_block: int | None
    ) -> list[_Trajectory]:
        """The blocks of this rank that a step is for."""
        of_blocks = trajectories.setdefault(simulation, {})
        wanted = [
            block
            for block in self.shape.blocks(step)
            if (only_for_block is None or block == only_for_block) and self._is_own(simulation, block)
        ]
        return [of_blocks.setdefault(block, _Trajectory(block=block)) for block in wanted]

    def _arrive(self, trajectory: _Trajectory, simulation: int, step: int, slot: int) -> tuple[list[int], list[int]]:
        """The windows that a step makes whole, in their order, and the slots that the block keeps no longer."""
        shape = self.shape
        starts, num_late = trajectory.arrive(shape, step, slot)
        if num_late:
            self.num_late[simulation, trajectory.block] += num_late
        self._num_kept += 1
        self._use([slot])
        made = []
        for start in starts:
            window = [trajectory.slots[it] for it in shape.steps(start)]
            self.slots[window[0]] = window
            self._use(window)
            made.append(window[0])
        released = [] if trajectory.num_open[step] else trajectory.release([step])
        for start in starts:
            released += trajectory.close(shape, start)
        return made, released

    def _all(self) -> Iterator[_Trajectory]:
        return (it for of_blocks in self._trajectories.values() for it in of_blocks.values())

    def _trajectory(self, simulation: int, block: int) -> _Trajectory:
        return self._trajectories.setdefault(simulation, {}).setdefault(block, _Trajectory(block=block))

    def _use(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.num_used += not self._uses[slot]
            self._uses[slot] += 1

    def _unkeep(self, slots: list[int]) -> list[int]:
        self._num_kept -= len(slots)
        return [freed for slot in slots for freed in self.let_go(slot)]
