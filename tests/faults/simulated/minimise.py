"""The smallest schedule that still fails."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stream_server.errors import ConfigError
from tests.faults.simulated.judge import judged
from tests.faults.simulated.plan import Plan

MAX_RUNS = 80
KIND_CHARACTERS = 40


def minimised(plan: Plan, *, fails: Callable[[Plan], bool], max_runs: int = MAX_RUNS) -> Plan:
    """Take away from a plan, piece by piece, as long as it fails."""
    num_runs = 0
    while True:
        for smaller in _smaller(plan):
            if num_runs == max_runs:
                return plan
            num_runs += 1
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def kind_of(violation: str) -> str:
    """The kind of a violation: its text without the numbers of this case."""
    return re.sub(r"\d+", "#", violation)[:KIND_CHARACTERS]


def fails_like(violation: str) -> Callable[[Plan], bool]:
    """Whether a plan breaks the same promise."""
    kind = kind_of(violation)

    def fails(plan: Plan) -> bool:
        try:
            return any(kind_of(found) == kind for found in judged(plan).violations)
        except ConfigError:
            return False

    return fails


def _smaller(plan: Plan) -> Iterator[Plan]:
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    plainer: dict[str, Any] = {
        "crasher": None,
        "crash": 0.0,
        "statics": False,
        "per_worker": 1,
        "ragged": False,
        "enough": None,
        **({"is_steered": False} if plan.enough is None else {}),
        "duplicates": 0.0,
        **({"policy": "fifo"} if plan.window is None else {"window": None}),
        "pseudo_epochs": 1,
        "num_ranks": max(1, plan.num_ranks - 1),
        "num_simulations": max(1, plan.num_simulations - 1),
        "num_steps": max(4, plan.num_steps // 2),
        "max_running": max(1, plan.max_running - 1),
        "client_ranks": 1,
        "linger": 0.95,
    }
    for name, value in plainer.items():
        if getattr(plan, name) == value or (name == "num_simulations" and plan.crasher is not None):
            continue
        yield replace(plan, **{name: value})
