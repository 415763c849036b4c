"""Numbers that were logged under one name, and how they become one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stream_server.errors import UserCodeError

Reduce = Literal["mean", "last", "sum", "max"]
Partial = Sequence[Any]


@dataclass(slots=True)
class LoggedNumbers:
    """The numbers that one rank has logged under a name; `reduce` is the rule that makes one of those of all ranks.

    "mean": their mean; "last": the mean of the newest of each rank; "sum"; "max".
    """

    reduce: Reduce = "mean"
    values: list[Any] = field(default_factory=list)

    def partial(self) -> Partial:
        """The part of this rank: the reduction, a number, and how many the number stands for."""
        values = [float(value) for value in (self.values[-1:] if self.reduce == "last" else self.values)]
        return [self.reduce, largest(values) if self.reduce == "max" else sum(values), len(values)]


def note(numbers: dict[str, LoggedNumbers], name: str, value: Any, reduce: Reduce) -> None:
    """Add a number to the others of its name.

    Raises:
        ValueError: there is no such reduction, or the others of this name have another one.
    """
    if reduce not in get_args(Reduce):
        known = ", ".join(f'"{kind}"' for kind in get_args(Reduce))
        raise ValueError(f"log({name!r}, …): reduce must be one of {known}, but is {reduce!r}")
    logged = numbers.setdefault(name, LoggedNumbers(reduce))
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


def _united(name: str, parts: Sequence[Partial]) -> float:
    reductions, numbers, counts = zip(*parts, strict=True)
    if len(set(reductions)) > 1:
        raise UserCodeError(f"log({name!r}, …) must have the same reduce on all ranks, but has {set(reductions)}")
    if reductions[0] == "max":
        return largest(numbers)
    total = math.fsum(numbers) if all(map(math.isfinite, numbers)) else float(sum(numbers))
    return total if reductions[0] == "sum" else total / sum(counts)


def largest(values: Sequence[float]) -> float:
    """The largest number; NaN if one of them is."""
    return math.nan if any(map(math.isnan, values)) else max(values)
