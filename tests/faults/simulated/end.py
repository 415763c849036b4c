"""How a schedule ended."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.chaos.audit import Audit, Incarnation
from tests.faults.simulated.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Steered:
    """The parameters, early stops and losses of a steered study at its end.

    `history` has the parameter of each simulation as the log of suggestions has it, line by line, `table` as
    parameters.csv does, and `given` that of each attempt. Nothing more was wanted of the simulations `ended_early`.
    `num_losses` is how many losses of each simulation the newest checkpoint has.
    """

    history: tuple[tuple[int, float], ...]
    table: Mapping[int, float]
    given: tuple[tuple[int, float], ...]
    ended_early: frozenset[int]
    num_losses: Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of a schedule: all that it left behind.

    `hang` tells what each thread waited for, if it did not end; `errors` what programs of the product died of, and
    `seen` what was wrong already while it ran. `happened` counts the faults that really came to pass,
    `num_failed` the attempts that ended with an error or were killed, `lost_steps` the ranks of simulations that ended
    since steps were gone which they ought to have kept.
    """

    plan: Plan
    exit_code: int | None
    report: dict[str, Any]
    incarnations: tuple[Incarnation, ...]
    audit: Audit
    happened: Counter[str]
    virtual_s: float
    num_switches: int
    num_messages: int
    num_attempts: int
    num_failed: int
    lost_steps: int
    trace: list[tuple[float, str, str]]
    steered: Steered | None = None
    hang: str = ""
    errors: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
