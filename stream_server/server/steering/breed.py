"""Breed: the next parameters lie where the losses of earlier ones are high."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gest_api import Generator  # type: ignore[import-untyped]
from gest_api.vocs import VOCS, ContinuousVariable  # type: ignore[import-untyped]
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

from stream_server.server.simulations.vocs import LogVariable
from stream_server.server.steering.feedback import DEVIATION

Array = NDArray[np.float64]


class Proposal:
    """The density from which the points of one generation are drawn, over the unit cube.

    With the probability `share` a point comes from a mixture of normal distributions around `centres`, cut off at the
    faces of the cube, and else from the whole cube.
    """

    def __init__(self, centres: Array, weights: Array, *, sigma: float, share: float) -> None:
        self.centres = centres
        self.weights = weights
        self.sigma = sigma
        self.share = share if len(centres) else 0.0
        self.num_drawn = 0
        self._low, self._high = ndtr(-centres / sigma), ndtr((1 - centres) / sigma)
        # The logarithm of each normal distribution's factor: in many dimensions the factor itself overflows.
        dimensions = centres.shape[1]
        self._log_factors = -np.log(self._high - self._low).sum(1) - dimensions * np.log(sigma * np.sqrt(2 * np.pi))

    def density(self, points: Array) -> Array:
        """The density at points of shape (n, d)."""
        if not self.share:
            return np.ones(len(points))
        # Without an array of all differences, which takes gigabytes for hundreds of parameters.
        squares = np.square(points).sum(1)[:, None] + np.square(self.centres).sum(1) - 2 * points @ self.centres.T
        normals: Array = np.exp(self._log_factors - np.maximum(squares, 0.0) / (2 * self.sigma**2))
        return 1 - self.share + self.share * (normals @ self.weights)

    def draw(self, random: np.random.Generator) -> tuple[Array, float | None]:
        """A point, and the weight of the centre around which it lies; None for one from the whole cube."""
        self.num_drawn += 1
        dimensions = self.centres.shape[1]
        if random.random() >= self.share:
            return np.asarray(random.random(dimensions)), None
        centre = int(random.choice(len(self.weights), p=self.weights))
        low, high = self._low[centre], self._high[centre]
        place = self.centres[centre] + self.sigma * ndtri(low + (high - low) * random.random(dimensions))
        return np.clip(place, 0.0, 1.0), float(self.weights[centre])


class Breed(Generator):  # type: ignore[misc]
    """Adaptive multiple importance sampling whose target density is the loss.

    After L. Dymchenko and B. Raffin, "MelissaDL x Breed: Towards Data-Efficient On-line Supervised Training of
    Multi-parametric Surrogates with Active Learning", arXiv:2410.05860 (2024), with the deterministic mixture weights
    of J.-M. Cornuet et al., "Adaptive Multiple Importance Sampling", Scand. J. Stat. 39 (2012).

    Points are suggested in generations. Each generation is drawn from a `Proposal` around the simulations whose results
    are known. Simulation i has the weight Q_i / Σ_t n_t q_t(x_i): how much its losses are above those of the batches
    that it was in, over the density with which all generations so far have drawn at its place, so that a region does
    not gain weight by having many simulations. Logarithmic parameters are taken in their logarithm.

    Args:
        vocs: the parameters; all must be continuous.
        seed: of the random numbers.
        sigma: standard deviation around a simulation, as a part of the range of each parameter.
        share: of the points that lie around simulations, once `ramp` generations have been; the others explore.
        first_share: that share in the first generation that knows results, from which it grows evenly.
        ramp: the number of generations in which it grows.
        generation: the number of points of a generation.
        metric: the result that serves as Q; what is negative, missing or not finite counts as 0.
    """

    def __init__(
        self,
        vocs: VOCS,
        seed: int = 0,
        *,
        sigma: float = 0.1,
        share: float = 0.75,
        first_share: float = 0.25,
        ramp: int = 4,
        generation: int = 10,
        metric: str = DEVIATION,
    ) -> None:
        super().__init__(vocs)
        if not (sigma > 0 and 0 <= first_share <= share < 1 and ramp >= 1 and generation >= 1):
            raise ValueError(
                "Breed needs sigma > 0, 0 <= first_share <= share < 1, ramp >= 1 and generation >= 1, but has "
                f"sigma {sigma}, first_share {first_share}, share {share}, ramp {ramp} and generation {generation}"
            )
        self._names = list(vocs.variables)
        self._is_log = np.array([isinstance(it, LogVariable) for it in vocs.variables.values()], bool)
        domains = np.array([it.domain for it in vocs.variables.values()], np.float64).reshape(-1, 2)
        self._domains = domains
        self._ends = np.where(self._is_log[:, None], np.log(np.where(self._is_log[:, None], domains, 1.0)), domains)
        self._random = np.random.default_rng(seed)
        self._sigma, self._share, self._first_share = sigma, share, first_share
        self._ramp, self._size, self._metric = ramp, generation, metric
        self._known: dict[tuple[float, ...], float] = {}
        self._proposals: list[Proposal] = []
        self._num_informed = 0

    def _validate_vocs(self, vocs: VOCS) -> None:
        others = [name for name, it in vocs.variables.items() if not isinstance(it, ContinuousVariable)]
        if others:
            raise ValueError(f"Breed takes continuous parameters, but {others[0]} is none")

    def suggest(self, num_points: int | None) -> list[dict[str, float]]:
        """The next points; `_score` is the weight of the simulation around which a point lies."""
        return [self._suggest_one() for _ in range(self._size if num_points is None else num_points)]

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Take the newest results of simulations, whoever suggested them."""
        for result in results:
            quality = float(result.get(self._metric, 0.0))
            point = tuple(float(result[name]) for name in self._names)
            self._known[point] = max(quality, 0.0) if np.isfinite(quality) and not result.get("failed") else 0.0

    def weights(self) -> tuple[Array, Array]:
        """The places of all simulations with results in the unit cube, and their weights, whose sum is 1."""
        places = self._placed(np.array(list(self._known), np.float64).reshape(-1, len(self._names)))
        quality = np.array(list(self._known.values()), np.float64)
        drawn = [it for it in self._proposals if it.num_drawn]
        # Those of another start of the study, or of the fallback, were drawn from the whole cube, as far as is known.
        num_before = max(0, len(places) - sum(it.num_drawn for it in drawn))
        mixture = np.full(len(places), float(num_before))
        for proposal in drawn:
            mixture += proposal.num_drawn * proposal.density(places)
        weights = np.where(mixture > 0, quality / np.where(mixture > 0, mixture, 1.0), 0.0)
        total = weights.sum()
        return places, weights / total if total > 0 else weights

    def _suggest_one(self) -> dict[str, float]:
        if not self._proposals or self._proposals[-1].num_drawn >= self._size:
            self._proposals.append(self._next_proposal())
        place, score = self._proposals[-1].draw(self._random)
        low, high = self._ends.T
        values = low * (1 - place) + high * place
        values = np.where(self._is_log, np.exp(np.where(self._is_log, values, 0.0)), values)
        values = np.clip(values, self._domains[:, 0], self._domains[:, 1])
        point = dict(zip(self._names, values.tolist(), strict=True))
        return point if score is None else {**point, "_score": score}

    def _next_proposal(self) -> Proposal:
        places, weights = self.weights()
        chosen = weights > 0
        if not chosen.any():
            return Proposal(np.zeros((0, len(self._names))), np.zeros(0), sigma=self._sigma, share=0.0)
        progress = min(1.0, self._num_informed / self._ramp)
        self._num_informed += 1
        share = self._first_share + (self._share - self._first_share) * progress
        return Proposal(places[chosen], weights[chosen], sigma=self._sigma, share=share)

    def _placed(self, points: Array) -> Array:
        """Points of study.json in the unit cube."""
        low, high = self._ends.T
        values = np.where(self._is_log, np.log(np.where(self._is_log, points, 1.0)), points)
        places: Array = (values - low) / (high - low)
        return places
