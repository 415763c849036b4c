"""The common base of the built-in classes that learn: scores of simulations, by place in the unit cube."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gest_api import Generator  # type: ignore[import-untyped]
from gest_api.vocs import VOCS  # type: ignore[import-untyped]
from numpy.typing import NDArray

from stream_server.samplers.vocs import cube_of

LEAST_SCORES = 8
# The result that says by how many standard deviations the losses of a simulation are above those beside them.
DEVIATION = "deviation"

Array = NDArray[np.float64]


class LearningGenerator(Generator):  # type: ignore[misc]
    """Keeps the newest score of each simulation, and makes points of places in the unit cube.

    Args:
        vocs: the parameters.
        seed: of the random numbers.
        metric: the result that serves as the score; what is negative, missing or not finite counts as 0.
        generation: the number of points that `suggest` gives when it is not told how many.
    """

    def __init__(self, vocs: VOCS, seed: int, metric: str, *, generation: int) -> None:
        super().__init__(vocs)
        self.cube = cube_of(vocs)
        self.random = np.random.default_rng(seed)
        self._names = list(vocs.variables)
        self._metric = metric
        self._size = generation
        self._scores: dict[tuple[float, ...], float] = {}

    def _validate_vocs(self, vocs: VOCS) -> None:
        cube_of(vocs)

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Take the newest results of simulations, regardless of who suggested them."""
        for result in results:
            if result.get("held_out") and self._metric not in result:
                continue
            score = float(result.get(self._metric, 0.0))
            point = tuple(float(result[name]) for name in self._names)
            self._scores[point] = max(score, 0.0) if np.isfinite(score) and not result.get("failed") else 0.0

    def suggest(self, num_points: int | None) -> list[dict[str, float]]:
        """The next points; `_score` is why one was chosen (see `suggest_one`), and missing for one that explores."""
        return [self.suggest_one() for _ in range(self._size if num_points is None else num_points)]

    @abstractmethod
    def suggest_one(self) -> dict[str, float]:
        """The next point, made by `point`."""

    @property
    def scored(self) -> tuple[Array, Array]:
        """The places of all simulations with results, shape (n, d), and their scores."""
        points = np.array(list(self._scores), np.float64).reshape(-1, len(self._names))
        return self.cube.places(points), np.array(list(self._scores.values()), np.float64)

    def point(self, place: Array, score: float | None) -> dict[str, float]:
        """The value that `suggest` returns for a place, shape (d,)."""
        point = dict(zip(self._names, self.cube.values(place).tolist(), strict=True))
        return point if score is None else {**point, "_score": score}


class ModelGenerator(LearningGenerator):
    """Draws points in generations, from a model of the scores that learns before each; a share of them explores.

    A model learns with a fixed number of steps, so that a seed gives the same points again, and for at most `fit_s`.

    Args:
        vocs, seed, metric: those of `LearningGenerator`.
        share: of the points that the model chooses; the others come from the whole range.
        generation: the number of points between two fits.
        fit_s: longest time for which a model may learn.
    """

    def __init__(self, vocs: VOCS, seed: int, metric: str, *, share: float, generation: int, fit_s: float) -> None:
        super().__init__(vocs, seed, metric, generation=generation)
        if not (0 <= share < 1 and generation >= 1 and fit_s > 0):
            name = type(self).__name__
            raise ValueError(
                f"{name} needs 0 <= share < 1, generation >= 1 and fit_s > 0, but has share {share}, generation "
                f"{generation} and fit_s {fit_s}"
            )
        self._share, self._fit_s = share, fit_s
        self._ready: list[tuple[Array, float | None]] = []

    @abstractmethod
    def learn(self, places: Array, scores: Array, until: float) -> None:
        """Fit the model to scores from 0 to 1 at places of shape (n, d), no longer than `until`, of time.monotonic."""

    @abstractmethod
    def choose(self, num: int) -> tuple[Array, Array]:
        """Places of shape (num, d) that the model suggests, and its scores."""

    def suggest_one(self) -> dict[str, float]:
        """The next point; `_score` is the score that the model gives it."""
        if not self._ready:
            self._ready = self._next_generation()
        return self.point(*self._ready.pop())

    def _next_generation(self) -> list[tuple[Array, float | None]]:
        places, scores = self.scored
        explored = self.random.random((self._size, len(self.cube)))
        chosen = self.random.random(self._size) < self._share
        # Scores that are all the same teach nothing.
        if len(scores) < LEAST_SCORES or np.ptp(scores) == 0 or not chosen.any():
            return [(place, None) for place in explored]
        self.learn(places, (scores - scores.min()) / np.ptp(scores), time.monotonic() + self._fit_s)
        new_places, found_scores = self.choose(int(chosen.sum()))
        explored[chosen] = np.clip(new_places, 0.0, 1.0)
        of_chosen = iter(found_scores.tolist())
        return [
            (place, next(of_chosen) if is_chosen else None) for place, is_chosen in zip(explored, chosen, strict=True)
        ]
