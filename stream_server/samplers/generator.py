"""A user's class that suggests parameters, by the protocol of gest-api, and what is expected of its answers."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from stream_server.built_in import GENERATORS, load_named
from stream_server.config.parameters import Bounds
from stream_server.errors import ConfigError
from stream_server.storage.typed import listed, quoted
from stream_server.user_code import arguments_for, call_user

KIND = "parameters.sampler"
OUTSIDE_TOLERANCE = 1e-9
ID, SCORE = "_id", "_score"

Values = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One suggestion: values in the order of study.json, and the score that the class gives it."""

    values: Values
    score: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestedPoints:
    """The points of an answer that can be used, and what is wrong with the others; "" if nothing is."""

    points: tuple[Point, ...]
    problem: str = ""


class PointGenerator:
    """An object of the user's class, which has `suggest(num)` and, if it learns, `ingest(results)`.

    A class that learns may also have `to_stop()`, the numbers of simulations of which it wants nothing more, and
    `enough()`, which is asked before each `suggest` but the first: whether it wants no further simulation.

    The class is called with the arguments that its signature names: `vocs` (as gest-api has it), `bounds` (pairs by
    name), `seed`, and those of study.json.

    Raises:
        ConfigError: there is no such class, or it takes other arguments, has no `suggest`, or `enough` in vain.
        UserCodeError: the class raised.
    """

    def __init__(
        self, name: str, args: Mapping[str, Any], bounds: Mapping[str, Bounds], seed: int, *, folder: Path
    ) -> None:
        self._name = name
        self._bounds = bounds
        self._ids: dict[Values, Any] = {}
        generator = load_named(name, GENERATORS, folder, kind=KIND)
        limits = {parameter: (limit.low, limit.high) for parameter, limit in bounds.items()}
        offered: dict[str, Any] = {"bounds": limits, "seed": seed}
        if "vocs" in inspect.signature(generator).parameters:
            # It loads pydantic models, which takes 0.4 s.
            from stream_server.samplers.vocs import vocs_of

            offered["vocs"] = vocs_of(bounds)
        given = arguments_for(generator, args, offered, kind=f"{KIND}.args")
        self._source = call_user(name, lambda: generator(**given))
        _check_methods(self._source, name)

    @property
    def learns(self) -> bool:
        """Whether it has `ingest`, so that what it suggests later may be better than what it suggests now."""
        return callable(getattr(self._source, "ingest", None))

    @property
    def stops(self) -> bool:
        """Whether it has `to_stop`, and is told of results at once."""
        return callable(getattr(self._source, "to_stop", None))

    def has_enough(self) -> bool:
        """Whether it wants no further simulation.

        Raises:
            UserCodeError: it raised.
        """
        enough = getattr(self._source, "enough", None)
        return callable(enough) and bool(call_user(f"{self._name}: enough", enough))

    def suggest(self, num: int) -> SuggestedPoints:
        """Ask for `num` points; what it raises, or what is wrong with its answer, is the `problem` of what is given."""
        try:
            rows = list(self._source.suggest(num))
        except (Exception, SystemExit) as error:
            problem = f"{self._name}: suggest({num}) raised {type(error).__name__}: {error}"
            return SuggestedPoints(points=(), problem=problem)
        problems = []
        if len(rows) != num:
            problems.append(f"{self._name}: suggest({num}) must return {num} dicts, but returned {len(rows)}")
        points = []
        for row in rows[:num]:
            point = self._point(row)
            if point is None:
                problems.append(self._complaint(row))
            else:
                points.append(point)
                self._ids[point.values] = row.get(ID)
        return SuggestedPoints(points=tuple(points), problem=problems[0] if problems else "")

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tell it how simulations have fared.

        Returns:
            The simulations that must be stopped.

        Raises:
            UserCodeError: it raised, or returned no numbers of simulations.
        """
        rows = [dict(result) for result in results]
        for row in rows:
            own = self._ids.get(tuple(row[name] for name in self._bounds))
            if own is not None:
                row[ID] = own
        call_user(f"{self._name}: ingest", self._source.ingest, rows)
        if not self.stops:
            return []
        ids: list[int] = call_user(f"{self._name}: to_stop", lambda: [*map(index, self._source.to_stop())])
        return ids

    def finalize(self) -> None:
        """End it: nothing more is asked of it.

        Raises:
            UserCodeError: it raised.
        """
        if callable(getattr(self._source, "finalize", None)):
            call_user(f"{self._name}: finalize", self._source.finalize)

    def _point(self, row: Any) -> Point | None:
        try:
            if set(row) - {ID, SCORE} != set(self._bounds):
                return None
            values = tuple(_number(row[name], limits) for name, limits in self._bounds.items())
            score = None if row.get(SCORE) is None else float(row[SCORE])
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        inside = all(_is_inside(value, limits) for value, limits in zip(values, self._bounds.values(), strict=True))
        has_score = score is None or math.isfinite(score)
        return Point(values=values, score=score) if inside and has_score else None

    def _complaint(self, row: object) -> str:
        wanted = [f"{name} in [{limit.low:g}, {limit.high:g}]" for name, limit in self._bounds.items()]
        return f"{self._name}: suggest must return dicts with {listed(wanted)}, but returned {quoted(row)}"


def check_class(name: str, args: Mapping[str, Any], folder: Path) -> bool | None:
    """Check a class of `parameters.sampler` and its arguments by the class alone: nothing is made of it.

    Returns:
        Whether it has `ingest`; None of a function, since only what it makes would tell.

    Raises:
        ConfigError: there is no such class, or it takes other arguments, or has no `suggest`.
        UserCodeError: its file raised.
    """
    loaded = load_named(name, GENERATORS, folder, kind=KIND)
    arguments_for(loaded, args, dict.fromkeys(("bounds", "seed", "vocs")), kind=f"{KIND}.args")
    if not isinstance(loaded, type):
        return None
    _check_methods(loaded, name)
    return callable(getattr(loaded, "ingest", None))


def _check_methods(loaded: object, name: str) -> None:
    if not callable(getattr(loaded, "suggest", None)):
        raise ConfigError(f"{KIND}: {name} must have a method suggest(num), but has none")
    if hasattr(loaded, "enough") and not callable(getattr(loaded, "ingest", None)):
        raise ConfigError(
            f"{KIND}: enough() of {name} would never be called, since it has no ingest, and all is suggested at the "
            "start: leave it out, or define ingest(results)"
        )


def _number(value: Any, limits: Bounds) -> float:
    number = float(value)
    return float(round(number)) if limits.integer and math.isfinite(number) else number


def _is_inside(value: float, limits: Bounds) -> bool:
    slack = OUTSIDE_TOLERANCE * (limits.high - limits.low)
    return limits.low - slack <= value <= limits.high + slack
