"""Redistribution of the buffers of some ranks to another number of ranks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import Policy, Seed, State, in_turn
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
    return [
        _dealt(dealt, backlog[first::num], draws[rank::num], keys, starts)
        for rank, (dealt, first) in enumerate(zip(policies, backlog_starts, strict=True))
    ]


def _dealt(policy: State, backlog: Rows, draws: list[State], keys: State, starts: Rows) -> Dealt:
    """The share of one rank, with the rows numbered anew."""
    all_rows: Rows = np.unique(np.concatenate([policy["slots"], backlog, *(draw["rows"] for draw in draws)]))
    ranks = np.searchsorted(starts, all_rows, "right") - 1
    state = {
        "policy": {**policy, "slots": np.searchsorted(all_rows, policy["slots"])},
        "backlog": np.searchsorted(all_rows, backlog),
        "draws": [{**draw, "rows": np.searchsorted(all_rows, draw["rows"])} for draw in draws],
        **{name: keys[name][all_rows] for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: present[all_rows] for name, present in keys["present"].items()},
    }
    return Dealt(state=state, ranks=ranks, rows=all_rows - starts[ranks])


def _joined_keys(states: Sequence[State]) -> State:
    return {
        **{name: np.concatenate([s[name] for s in states]) for name in ("simulation_ids", "time_steps", "seen")},
        "present": {name: np.concatenate([s["present"][name] for s in states]) for name in states[0]["present"]},
    }


def _all_slots(policies: Sequence[State]) -> list[int]:
    slots: list[int] = np.sort(np.concatenate([policy["slots"] for policy in policies])).tolist()
    return slots
