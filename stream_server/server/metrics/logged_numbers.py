"""Numbers that were logged under one name, and how they become one."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stream_server.errors import UserCodeError

Reduce = Literal["mean", "last", "sum", "max", "min"]
Partial = Sequence[Any]

REDUCTIONS = get_args(Reduce)
EXTREMES: Mapping[str, Callable[[Iterable[float]], float]] = {"max": max, "min": min}


@dataclass(slots=True)
class LoggedNumbers:
    """The numbers that one rank has logged under a name; `reduce` is the rule that makes one of those of all ranks.

    "mean": their mean; "last": the mean of the newest of each rank; "sum"; "max"; "min". What is to be `kept` is that
    of the whole run so far.
    """

    reduce: Reduce = "mean"
    kept: bool = False
    values: list[Any] = field(default_factory=list)

    def partial(self, before: Partial | None = None) -> Partial:
        """The part of this rank: the reduction, a number, and how many it stands for, with those `before` these."""
        values = [float(value) for value in (self.values[-1:] if self.reduce == "last" else self.values)]
        number = extreme(self.reduce, values) if self.reduce in EXTREMES else sum(values)
        own = [self.reduce, number, len(values)]
        return own if before is None or self.reduce == "last" else joined([before, own])


def is_metric(value: Any) -> bool:
    """Whether `value` is a metric object, which collects over batches, rather than a number."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("update", "compute", "reset")
    )


def note(numbers: dict[str, LoggedNumbers], name: str, value: Any, reduce: Reduce, *, keep: bool = False) -> None:
    """Add a number to the others of its name.

    Raises:
        ValueError: there is no such reduction, or the others of this name have another one.
    """
    if reduce not in REDUCTIONS:
        known = ", ".join(f'"{kind}"' for kind in REDUCTIONS)
        raise ValueError(f"log({name!r}, …): reduce must be one of {known}, but is {reduce!r}")
    logged = numbers.setdefault(name, LoggedNumbers(reduce, keep))
    if logged.reduce != reduce:
        raise ValueError(
            f'log({name!r}, …) takes the same reduce each time, but got "{reduce}" after "{logged.reduce}": give one '
            "of them another name"
        )
    logged.values.append(value)


def united(per_rank: Iterable[Mapping[str, Partial]]) -> dict[str, float]:
    """One number for each name, of the parts of all ranks.

    Raises:
        UserCodeError: they have different reductions.
    """
    parts: dict[str, list[Partial]] = {}
    for rank in per_rank:
        for name, part in rank.items():
            parts.setdefault(name, []).append(part)
    return {name: _united(name, of_name) for name, of_name in parts.items()}


def joined(parts: Sequence[Partial]) -> Partial:
    """One part in place of several of the same reduction."""
    reductions, numbers, counts = zip(*parts, strict=True)
    if reductions[0] in EXTREMES:
        return [reductions[0], extreme(reductions[0], numbers), sum(counts)]
    total = math.fsum(numbers) if all(map(math.isfinite, numbers)) else float(sum(numbers))
    return [reductions[0], total, sum(counts)]


def _united(name: str, parts: Sequence[Partial]) -> float:
    if len(reductions := {part[0] for part in parts}) > 1:
        raise UserCodeError(f"log({name!r}, …) must have the same reduce on all ranks, but has {reductions}")
    reduction, number, count = joined(parts)
    return float(number / count if reduction in ("mean", "last") else number)


def extreme(reduce: str, values: Sequence[float]) -> float:
    """The largest or the smallest number; NaN if one of them is."""
    return math.nan if any(map(math.isnan, values)) else EXTREMES[reduce](values)
