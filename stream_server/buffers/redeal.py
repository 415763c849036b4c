"""Redistribution of the buffers of some ranks to another number of ranks. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import Policy, Seed, State, interleaved
from stream_server.buffers.windows import WINDOWS, WindowShape
from stream_server.errors import UserCodeError

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dealt:
    """The initial state of one new rank: a state for `Buffer.load`, and the old rank and row of each of its rows.

    `ranks` and `rows` have one element per row; both ascend.
    """

    state: State
    ranks: Rows
    rows: Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockDealing:
    """The ranks that make the windows of blocks of `shape`: `before` and `now` are given a simulation and a block.

    `torn` are steps, each with its simulation and a block, that this block had, and its other block on another rank not
    yet, where both are of one rank now: that rank does not know them, and they are sent again.
    """

    shape: WindowShape
    before: Callable[[int, int], int]
    now: Callable[[int, int], int]
    torn: Collection[tuple[int, int, int]] = ()


def redeal(
    states: Sequence[State],
    *,
    policy: type[Policy],
    seeds: Sequence[Seed],
    windows: BlockDealing | None = None,
) -> list[Dealt]:
    """Deal the states of all old ranks, as `Frozen.state` gave them, to one new rank for each of `seeds`.

    The `policy` deals its population. The samples of the backlog are dealt one by one in the order of arrival, as far
    as it can be told across ranks. A draw that was not released goes to one rank as a whole, and its samples that are
    in the population still go where all the others go, so that a row may be dealt twice.

    Windows are dealt as other samples are, each with the rows of all its steps. What has not become a window yet goes
    to the ranks of the blocks that need it, as `windows` says.

    Raises:
        UserCodeError: the policy has lost a sample, or dealt one twice.
    """
    num = len(seeds)
    # From here on a row is identified by its position in the concatenated files of all ranks.
    starts = np.cumsum([0] + [len(state["simulation_ids"]) for state in states])
    old = [
        {**state["policy"], "slots": state["policy"]["slots"] + start}
        for state, start in zip(states, starts, strict=False)
    ]
    policies = policy.deal(old, seeds)
    if _all_slots(policies) != _all_slots(old) or len(policies) != num:
        raise UserCodeError(f"{policy.__name__}.deal must give each slot to exactly one of {num} ranks")
    backlog = interleaved([state["backlog"] + start for state, start in zip(states, starts, strict=False)])
    backlog_starts = (np.arange(num) - sum(len(dealt["slots"]) for dealt in policies)) % num
    draws = [
        {**draw, "rows": draw["rows"] + start}
        for state, start in zip(states, starts, strict=False)
        for draw in state["draws"]
    ]
    keys = _joined_keys(states)
    if WINDOWS in states[0]:
        assert windows is not None
        dealer = _WindowDealer(states, starts, windows)
        return [dealer.deal(rank, dealt, draws[rank::num]) for rank, dealt in enumerate(policies)]
    return [
        _dealt(dealt, backlog[first::num], draws[rank::num], keys, starts)
        for rank, (dealt, first) in enumerate(zip(policies, backlog_starts, strict=True))
    ]


def _dealt(
    policy: State, backlog: Rows, draws: list[State], keys: State, starts: Rows, further: Sequence[Rows] = ()
) -> Dealt:
    """The share of one rank, with the rows numbered anew; `further` are rows that it has besides."""
    all_rows: Rows = np.unique(np.concatenate([policy["slots"], backlog, *(draw["rows"] for draw in draws), *further]))
    ranks = np.searchsorted(starts, all_rows, "right") - 1
    state = {
        "policy": {**policy, "slots": np.searchsorted(all_rows, policy["slots"])},
        "backlog": np.searchsorted(all_rows, backlog),
        "draws": [{**draw, "rows": np.searchsorted(all_rows, draw["rows"])} for draw in draws],
        **{name: keys[name][all_rows] for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: present[all_rows] for name, present in keys["present"].items()},
    }
    return Dealt(state=state, ranks=ranks, rows=all_rows - starts[ranks])


class _WindowDealer:
    """Deals the windows of all old ranks, one new rank after the other, whose states the policy has dealt."""

    def __init__(self, states: Sequence[State], starts: Rows, dealing: BlockDealing) -> None:
        self._saved = [state[WINDOWS] for state in states]
        self._starts = starts
        self._dealing = dealing
        self._keys = _joined_keys(states)
        self._windows = self._joined("windows", 1)
        self._windows = self._windows[np.argsort(self._windows[:, 0])]
        self._made = self._joined("made", 1)
        self._kept = self._joined("kept", [0, 0, 0, 1])
        self._observed = np.concatenate([saved["observed"] for saved in self._saved])
        self._torn = {(simulation, step) for simulation, _, step in dealing.torn}
        self._dropped: set[tuple[int, int]] = set()
        self._taken: list[tuple[int, list[int]]] = []
        self._waiting: list[tuple[int, list[int]]] = []
        for old, (state, start) in enumerate(zip(states, starts, strict=False)):
            self._add_backlog(old, state, int(start))

    def _add_backlog(self, old: int, state: State, start: int) -> None:
        """Add the backlog of an old rank: the rows, each with the blocks that it is for."""
        saved = state[WINDOWS]
        only_for_block = {row: block for block, row in saved["only_for_block"].tolist()}
        repeated_steps = set(map(tuple, saved["repeated_steps"].tolist()))
        for place, row in enumerate(state["backlog"].tolist()):
            simulation, step = (
                int(state["simulation_ids"][row]),
                self._dealing.shape.step(int(state["time_steps"][row])),
            )
            blocks = [
                block
                for block in self._dealing.shape.blocks(step)
                if self._dealing.before(simulation, block) == old and only_for_block.get(row, block) == block
            ]
            if place < saved["num_taken"]:
                # All its windows have it: it waits to be recorded and acknowledged, once.
                self._taken.append((row + start, blocks[:1]))
            elif (simulation, step) in self._torn:
                self._dropped.add((simulation, step))
            else:
                self._waiting.append(
                    (row + start, [it for it in blocks if (simulation, it, step) not in repeated_steps])
                )

    def deal(self, rank: int, policy: State, draws: list[State]) -> Dealt:
        """The share of a rank: the windows that its policy and its draws have, and what is not a window yet."""
        is_made_here = [self._is_of(rank, *self._key(row, first=True)) for row in self._made.tolist()]
        made = self._made[np.array(is_made_here, bool)]
        only_for_block: dict[int, int] = {}
        taken, waiting = (
            np.array([row for row, blocks in rows if self._goes_to(rank, row, blocks, only_for_block)], np.int64)
            for rows in (self._taken, self._waiting)
        )
        kept = self._kept[self._are_of(rank, self._kept[:, 0], self._kept[:, 1])]
        first: Rows = np.unique(np.concatenate([policy["slots"], made, *(draw["rows"] for draw in draws)]))
        windows = self._windows[np.searchsorted(self._windows[:, 0], first)]
        backlog = np.concatenate([taken, waiting])
        dealt = _dealt(policy, backlog, draws, self._keys, self._starts, [windows.reshape(-1), kept[:, -1]])
        rows = dealt.rows + self._starts[dealt.ranks]
        in_backlog = [(block, int(np.searchsorted(rows, row))) for row, block in only_for_block.items()]
        dealt.state[WINDOWS] = {
            "windows": np.searchsorted(rows, windows),
            "made": np.searchsorted(rows, made),
            "kept": np.column_stack([kept[:, :-1], np.searchsorted(rows, kept[:, -1])]),
            "num_taken": len(taken),
            "only_for_block": np.array(in_backlog, np.int64).reshape(-1, 2),
            "repeated_steps": self._repeated_steps(rank),
            **{name: self._of_blocks(rank, name) for name in ("missing", "late", "impossible")},
            "num_late": self._late(rank),
            "ended": [it for saved in self._saved for it in saved["ended"]],
            "num_made": sum(saved["num_made"] for saved in self._saved) if rank == 0 else 0,
            "observed": self._observed[rows],
        }
        # A step that several ranks have is observed by the first of them alone.
        self._observed[rows] = True
        return dealt

    def _joined(self, name: str, rows: int | list[int]) -> Rows:
        """An array of all old ranks, whose columns that are `rows` count all of them."""
        parts = [
            saved[name] + start * np.asarray(rows) for saved, start in zip(self._saved, self._starts, strict=False)
        ]
        return np.concatenate(parts)

    def _goes_to(self, rank: int, row: int, blocks: list[int], only_for_block: dict[int, int]) -> bool:
        """Whether a row of the backlog goes to a rank, for these blocks; notes it if it is not for all of that rank."""
        simulation, step = self._key(row)
        mine = [block for block in self._dealing.shape.blocks(step) if self._is_of(rank, simulation, block)]
        wanted = [block for block in blocks if block in mine]
        if wanted and wanted != mine:
            [only_for_block[row]] = wanted
        return bool(wanted)

    def _repeated_steps(self, rank: int) -> Rows:
        """The steps that a block has had, and that come to this rank again."""
        begun = [
            (simulation, block, step)
            for simulation, block, step in self._dealing.torn
            if self._is_of(rank, simulation, block) and (simulation, step) not in self._dropped
        ]
        return np.array(begun, np.int64).reshape(-1, 3)

    def _of_blocks(self, rank: int, name: str) -> Rows:
        """The rows of a table whose first columns are a simulation and the first step of a window."""
        table = np.concatenate([saved[name] for saved in self._saved])
        return table[self._are_of(rank, table[:, 0], table[:, 1] // self._dealing.shape.block)]

    def _late(self, rank: int) -> Rows:
        table = np.concatenate([saved["num_late"] for saved in self._saved])
        return table[self._are_of(rank, table[:, 0], table[:, 1])]

    def _key(self, row: int, *, first: bool = False) -> tuple[int, int]:
        """The simulation and step of a row, or, for the `first` step of a window, its block."""
        simulation, label = int(self._keys["simulation_ids"][row]), int(self._keys["time_steps"][row])
        step = self._dealing.shape.step(label)
        return simulation, step // self._dealing.shape.block if first else step

    def _is_of(self, rank: int, simulation: int, block: int) -> bool:
        return self._dealing.now(simulation, block) == rank

    def _are_of(self, rank: int, simulations: Rows, blocks: Rows) -> npt.NDArray[np.bool_]:
        pairs = zip(simulations.tolist(), blocks.tolist(), strict=True)
        return np.array([self._is_of(rank, simulation, block) for simulation, block in pairs], bool)


def _joined_keys(states: Sequence[State]) -> State:
    return {
        **{name: np.concatenate([s[name] for s in states]) for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: np.concatenate([s["present"][name] for s in states]) for name in states[0]["present"]},
    }


def _all_slots(policies: Sequence[State]) -> list[int]:
    slots: list[int] = np.sort(np.concatenate([policy["slots"] for policy in policies])).tolist()
    return slots
