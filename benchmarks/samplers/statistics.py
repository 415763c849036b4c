"""Means and percentiles of errors over trajectories and seeds, with confidence intervals by the bootstrap."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NUM_RESAMPLES = 2000
LEVEL = 0.95
MEASURES: dict[str, Callable[[Array], Array]] = {
    "mean": lambda errors: errors.mean(axis=-1),
    "p99": lambda errors: np.percentile(errors, 99, axis=-1),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value, and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} … {self.high:.3g})"


def estimate(errors: Array, measure: str) -> Estimate:
    """A measure of the errors of shape (seeds, trajectories): its mean over the seeds.

    Seeds and trajectories are both drawn with replacement; the trajectories are the same for all seeds.
    """
    of = MEASURES[measure]
    resampled = [of(it).mean() for it in _resamples(errors)]
    return _interval(float(of(errors).mean()), resampled)


def ratio(errors: Array, reference: Array, measure: str) -> Estimate:
    """The ratio of a measure of two samplers, whose runs have the same seeds and trajectories."""
    of = MEASURES[measure]
    both = np.stack((errors, reference), axis=1)
    resampled = [float(np.divide(*of(it).mean(axis=0))) for it in _resamples(both)]
    return _interval(float(np.divide(*of(both).mean(axis=0))), resampled)


def _resamples(errors: Array) -> list[Array]:
    random, (num_seeds, num) = np.random.default_rng(0), (errors.shape[0], errors.shape[-1])
    return [
        errors[random.integers(num_seeds, size=num_seeds)][..., random.integers(num, size=num)]
        for _ in range(NUM_RESAMPLES)
    ]


def _interval(value: float, resampled: list[float]) -> Estimate:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high))
