"""Dealing what the buffers of some ranks held to another number of ranks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import NO_SLOTS, Seed, State, generator

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dealt:
    """What one new rank begins with: a state for `Buffer.load`, and of each of its rows the old rank and row there.

    `ranks` and `rows` have one element per row; both ascend.
    """

    state: State
    ranks: Rows
    rows: Rows


def redeal(states: Sequence[State], *, seeds: Sequence[Seed]) -> list[Dealt]:
    """Deal the states of all old ranks, as `Frozen.state` gave them, to one new rank for each of `seeds`.

    Samples are dealt one by one: those of a Fifo and of the backlog in the order of arrival, as far as it can be told
    across ranks; the others so that every rank gets as many seen ones, or as many draws. A draw that was not released
    goes to one rank as a whole, and its samples that are in the population still go where all the others go, so that a
    row may be dealt twice. Counters are split, random numbers begin anew from the seeds, and the new buffers are closed
    if all old ones were.
    """
    num = len(seeds)
    # From here on a row is told by its place in the files of all ranks, one after the other.
    starts = np.cumsum([0] + [len(state["simulation_ids"]) for state in states])
    policies = _deal_policies(
        [
            {**state["policy"], "slots": state["policy"]["slots"] + start}
            for state, start in zip(states, starts, strict=False)
        ],
        seeds,
    )
    backlog, _ = _in_turn([state["backlog"] + start for state, start in zip(states, starts, strict=False)])
    backlog_starts = (np.arange(num) - sum(len(policy["slots"]) for policy in policies)) % num
    draws = [
        {**draw, "rows": draw["rows"] + start}
        for state, start in zip(states, starts, strict=False)
        for draw in state["draws"]
    ]
    keys = _joined_keys(states)
    return [
        _dealt(policy, backlog[first::num], draws[rank::num], keys, starts)
        for rank, (policy, first) in enumerate(zip(policies, backlog_starts, strict=True))
    ]


def _dealt(policy: State, backlog: Rows, draws: list[State], keys: State, starts: Rows) -> Dealt:
    """What one rank gets, with the rows numbered anew."""
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


def _deal_policies(old: Sequence[State], seeds: Sequence[Seed]) -> list[State]:
    slots, order = _in_turn([policy["slots"] for policy in old])
    closed = all(policy["closed"] for policy in old)
    match old[0]:
        case {"draws_left": _}:
            return _deal_firo(old, slots, order, closed, seeds)
        case {"seen": _}:
            return _deal_reservoir(old, slots, order, closed, seeds)
    return [{"slots": slots[rank :: len(seeds)], "closed": closed} for rank in range(len(seeds))]


def _deal_firo(old: Sequence[State], slots: Rows, order: Rows, closed: bool, seeds: Sequence[Seed]) -> list[State]:
    draws_left = np.concatenate([policy["draws_left"] for policy in old])[order]
    by_draws = np.argsort(draws_left, kind="stable")
    return [
        {
            "slots": slots[by_draws[rank :: len(seeds)]],
            "draws_left": draws_left[by_draws[rank :: len(seeds)]],
            "closed": closed,
            "random": _random_state(seed),
        }
        for rank, seed in enumerate(seeds)
    ]


def _deal_reservoir(old: Sequence[State], slots: Rows, order: Rows, closed: bool, seeds: Sequence[Seed]) -> list[State]:
    num = len(seeds)
    seen = np.concatenate([policy["seen"] for policy in old])[order]
    seen_first = np.argsort(~seen, kind="stable")
    num_inserts = _split(sum(policy["num_inserts"] for policy in old), num)
    num_draws = _split(sum(policy["num_draws"] for policy in old), num)
    return [
        {
            "slots": slots[seen_first[rank::num]],
            "seen": seen[seen_first[rank::num]],
            "fresh": NO_SLOTS,
            "num_settled": int(np.count_nonzero(seen[seen_first[rank::num]])),
            "num_inserts": num_inserts[rank],
            "num_draws": num_draws[rank],
            "closed": closed,
            "random": _random_state(seed),
        }
        for rank, seed in enumerate(seeds)
    ]


def _in_turn(parts: Sequence[Array]) -> tuple[Array, Rows]:
    """The first of each part, then the second of each and so on; and where each stood in all parts put together."""
    places = np.concatenate([np.arange(len(part)) for part in parts])
    order = np.argsort(places, kind="stable")
    return np.concatenate(parts)[order], order


def _split(total: int, num: int) -> list[int]:
    return [total // num + (rank < total % num) for rank in range(num)]


def _random_state(seed: Seed) -> State:
    return dict(generator(seed).bit_generator.state)
