"""Redistribution of the buffers of some ranks to another number of ranks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import Policy, Seed, State, interleave
from stream_server.buffers.windows import WINDOWS
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


def redeal(states: Sequence[State], *, policy: type[Policy], seeds: Sequence[Seed]) -> list[Dealt]:
    """Deal the states of all old ranks, as `Frozen.state` gave them, to one new rank for each of `seeds`.

    The `policy` deals its population. The samples of the backlog are dealt one by one in the order of arrival, as far
    as it can be told across ranks. A draw that was not released goes to one rank as a whole, and its samples that are
    in the population still go where all the others go, so that a row may be dealt twice.

    Windows are dealt as other samples are, each with the rows of all its steps. What has not become a window yet goes
    to the rank of its simulation (`Routing.SIMULATIONS`).

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
    backlog = interleave([state["backlog"] + start for state, start in zip(states, starts, strict=False)])
    backlog_starts = (np.arange(num) - sum(len(dealt["slots"]) for dealt in policies)) % num
    draws = [
        {**draw, "rows": draw["rows"] + start}
        for state, start in zip(states, starts, strict=False)
        for draw in state["draws"]
    ]
    keys = _joined_keys(states)
    if WINDOWS in states[0]:
        dealer = _WindowDealer(states, starts, num)
        return [dealer.deal(rank, dealt, draws[rank::num]) for rank, dealt in enumerate(policies)]
    return [
        _dealt(dealt, backlog[first::num], draws[rank::num], keys, starts)
        for rank, (dealt, first) in enumerate(zip(policies, backlog_starts, strict=True))
    ]


def _dealt(
    policy: State, backlog: Rows, draws: list[State], keys: State, starts: Rows, further: Sequence[Rows] = ()
) -> Dealt:
    """The share of one rank, with the rows renumbered; `further` are rows that it has besides."""
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
    """Deals the windows of all old ranks to `num` new ones, one after the other, whose states the policy has dealt."""

    def __init__(self, states: Sequence[State], starts: Rows, num: int) -> None:
        self._saved = [state[WINDOWS] for state in states]
        self._starts = starts
        self._num = num
        self._keys = _joined_keys(states)
        self._windows = self._joined("windows", 1)
        self._windows = self._windows[np.argsort(self._windows[:, 0])]
        self._made = self._joined("made", 1)
        self._kept = self._joined("kept", [0, 0, 1])
        self._observed = np.concatenate([saved["observed"] for saved in self._saved])
        begun = [
            (state["backlog"] + start, state[WINDOWS]["num_taken"])
            for state, start in zip(states, starts, strict=False)
        ]
        self._taken = np.concatenate([backlog[:num] for backlog, num in begun])
        self._waiting = np.concatenate([backlog[num:] for backlog, num in begun])

    def deal(self, rank: int, policy: State, draws: list[State]) -> Dealt:
        """The share of a rank: the windows that its policy and its draws have, and what is not a window yet."""
        complete, taken, waiting = (
            rows[self._keys["simulation_ids"][rows] % self._num == rank]
            for rows in (self._made, self._taken, self._waiting)
        )
        kept = self._of_rank(rank, self._kept)
        first: Rows = np.unique(np.concatenate([policy["slots"], complete, *(draw["rows"] for draw in draws)]))
        windows = self._windows[np.searchsorted(self._windows[:, 0], first)]
        backlog = np.concatenate([taken, waiting])
        dealt = _dealt(policy, backlog, draws, self._keys, self._starts, [windows.reshape(-1), kept[:, -1]])
        rows = dealt.rows + self._starts[dealt.ranks]
        tables = ("missing", "late", "impossible", "num_late")
        dealt.state[WINDOWS] = {
            "windows": np.searchsorted(rows, windows),
            "made": np.searchsorted(rows, complete),
            "kept": np.column_stack([kept[:, :-1], np.searchsorted(rows, kept[:, -1])]),
            "num_taken": len(taken),
            **{name: self._of_rank(rank, np.concatenate([saved[name] for saved in self._saved])) for name in tables},
            "ended": [each for saved in self._saved for each in saved["ended"] if each % self._num == rank],
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

    def _of_rank(self, rank: int, table: Rows) -> Rows:
        """The rows of a table whose first column is a simulation of a rank."""
        rows: Rows = table[table[:, 0] % self._num == rank]
        return rows


def _joined_keys(states: Sequence[State]) -> State:
    return {
        **{name: np.concatenate([s[name] for s in states]) for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: np.concatenate([s["present"][name] for s in states]) for name in states[0]["present"]},
    }


def _all_slots(policies: Sequence[State]) -> list[int]:
    slots: list[int] = np.sort(np.concatenate([policy["slots"] for policy in policies])).tolist()
    return slots
