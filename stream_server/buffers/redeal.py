"""Redistribution of the buffers of some ranks to another number of ranks. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import Policy, Seed, State, in_turn
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


def redeal(
    states: Sequence[State], *, policy: type[Policy], seeds: Sequence[Seed], rank_of: Callable[[int], int]
) -> list[Dealt]:
    """Deal the states of all old ranks, as `Frozen.state` gave them, to one new rank for each of `seeds`.

    The `policy` deals its population. The samples of the backlog are dealt one by one in the order of arrival, as far
    as it can be told across ranks. A draw that was not released goes to one rank as a whole, and its samples that are
    in the population still go where all the others go, so that a row may be dealt twice.

    Windows are dealt as other samples are, each with the rows of all its steps. What has not become a window yet goes
    to the rank of its simulation, which `rank_of` gives.

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
    backlog = in_turn([state["backlog"] + start for state, start in zip(states, starts, strict=False)])
    backlog_starts = (np.arange(num) - sum(len(dealt["slots"]) for dealt in policies)) % num
    draws = [
        {**draw, "rows": draw["rows"] + start}
        for state, start in zip(states, starts, strict=False)
        for draw in state["draws"]
    ]
    keys = _joined_keys(states)
    if WINDOWS in states[0]:
        return _dealt_windows(states, policies, [draws[rank::num] for rank in range(num)], keys, starts, rank_of)
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


def _dealt_windows(
    states: Sequence[State],
    policies: Sequence[State],
    draws: Sequence[list[State]],
    keys: State,
    starts: Rows,
    rank_of: Callable[[int], int],
) -> list[Dealt]:
    """The shares of all ranks."""
    saved = [state[WINDOWS] for state in states]
    offsets = list(zip(saved, starts, strict=False))
    windows: Rows = np.concatenate([it["windows"] + start for it, start in offsets])
    windows = windows[np.argsort(windows[:, 0])]
    taken = np.concatenate(
        [s["backlog"][: it["num_taken"]] + start for s, (it, start) in zip(states, offsets, strict=True)]
    )
    waiting = np.concatenate(
        [s["backlog"][it["num_taken"] :] + start for s, (it, start) in zip(states, offsets, strict=True)]
    )
    made = np.concatenate([it["made"] + start for it, start in offsets])
    kept = np.concatenate([it["kept"] + [0, 0, start] for it, start in offsets])
    observed = np.concatenate([it["observed"] for it in saved])
    simulations = keys["simulation_ids"]
    ranks_of = {int(it): rank_of(int(it)) for it in np.unique(simulations)}

    def of_rank(rows: Rows, rank: int) -> Rows:
        return rows[[ranks_of[int(it)] == rank for it in simulations[rows]]]

    dealt, counted = [], np.zeros(len(simulations), bool)
    for rank, policy in enumerate(policies):
        mine = {
            name: np.concatenate([it[name] for it in saved]).reshape(-1, width)
            for name, width in (("missing", 3), ("late", 3), ("impossible", 2))
        }
        mine = {name: rows[[rank_of(int(it)) == rank for it in rows[:, 0]]] for name, rows in mine.items()}
        my_made, my_taken, my_waiting = (of_rank(rows, rank) for rows in (made, taken, waiting))
        my_kept = kept[[ranks_of[int(it)] == rank for it in kept[:, 0]]]
        anchors = np.unique(np.concatenate([policy["slots"], my_made, *(draw["rows"] for draw in draws[rank])]))
        my_windows = windows[np.searchsorted(windows[:, 0], anchors)]
        share = _dealt(
            policy,
            np.concatenate([my_taken, my_waiting]),
            draws[rank],
            keys,
            starts,
            [my_windows.reshape(-1), my_kept[:, 2]],
        )
        rows = share.rows + starts[share.ranks]
        my_kept = np.column_stack([my_kept[:, :2], np.searchsorted(rows, my_kept[:, 2])])
        share.state[WINDOWS] = {
            **mine,
            "windows": np.searchsorted(rows, my_windows),
            "made": np.searchsorted(rows, my_made),
            "kept": my_kept,
            "num_taken": len(my_taken),
            "ended": [it for state in saved for it in state["ended"] if rank_of(it) == rank],
            "num_late": {
                int(it): num for state in saved for it, num in state["num_late"].items() if rank_of(int(it)) == rank
            },
            "num_made": sum(state["num_made"] for state in saved) if rank == 0 else 0,
            # A step that several ranks have is to be observed by one of them.
            "observed": observed[rows] | counted[rows],
        }
        counted[rows] = True
        dealt.append(share)
    return dealt


def _joined_keys(states: Sequence[State]) -> State:
    return {
        **{name: np.concatenate([s[name] for s in states]) for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: np.concatenate([s["present"][name] for s in states]) for name in states[0]["present"]},
    }


def _all_slots(policies: Sequence[State]) -> list[int]:
    slots: list[int] = np.sort(np.concatenate([policy["slots"] for policy in policies])).tolist()
    return slots
