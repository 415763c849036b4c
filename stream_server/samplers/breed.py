"""Breed: the next parameters lie where the losses of earlier ones are high."""

import numpy as np
from gest_api.vocs import VOCS  # type: ignore[import-untyped]
from scipy.special import logsumexp, ndtr, ndtri  # type: ignore[import-untyped]

from stream_server.samplers.learning import DEVIATION, Array, LearningGenerator


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

    def log_density(self, points: Array) -> Array:
        """The logarithm of the density at points of shape (n, d)."""
        if not self.share:
            return np.zeros(len(points))
        # Without an array of all differences, which takes gigabytes for hundreds of parameters.
        squares = np.square(points).sum(1)[:, None] + np.square(self.centres).sum(1) - 2 * points @ self.centres.T
        normals = self._log_factors - np.maximum(squares, 0.0) / (2 * self.sigma**2)
        mixture = np.log(self.share) + logsumexp(normals, axis=1, b=self.weights)
        density: Array = np.logaddexp(np.log1p(-self.share), mixture)
        return density

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


class Breed(LearningGenerator):
    """Adaptive multiple importance sampling whose target density is the loss.

    After L. Dymchenko and B. Raffin, "MelissaDL x Breed: Towards Data-Efficient On-line Supervised Training of
    Multi-parametric Surrogates with Active Learning", arXiv:2410.05860 (2024), with the deterministic mixture weights
    of J.-M. Cornuet et al., "Adaptive Multiple Importance Sampling", Scand. J. Stat. 39 (2012).

    Points are suggested in generations. Each generation is drawn from a `Proposal` around the simulations whose results
    are known. Simulation i has the weight Q_i / Σ_t n_t q_t(x_i): how much its losses are above those of the batches
    that it was in, over the density with which all generations so far have drawn at its place, so that a region does
    not gain weight by having many simulations. All is done in the `UnitCube` of the parameters.

    Args:
        vocs: the parameters.
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
        super().__init__(vocs, seed, metric, generation=generation)
        if not (sigma > 0 and 0 <= first_share <= share < 1 and ramp >= 1 and generation >= 1):
            raise ValueError(
                "Breed needs sigma > 0, 0 <= first_share <= share < 1, ramp >= 1 and generation >= 1, but has "
                f"sigma {sigma}, first_share {first_share}, share {share}, ramp {ramp} and generation {generation}"
            )
        self._sigma, self._share, self._first_share = sigma, share, first_share
        self._ramp = ramp
        self._proposals: list[Proposal] = []
        self._num_informed = 0

    def weights(self) -> tuple[Array, Array]:
        """The places of all simulations with results in the unit cube, and their weights, whose sum is 1."""
        places, quality = self.scored
        drawn = [proposal for proposal in self._proposals if proposal.num_drawn]
        # Points of another start or of the fallback were drawn from the whole cube, as far as is known.
        num_before = max(0, len(places) - sum(each.num_drawn for each in drawn))
        counts = [num_before, *(each.num_drawn for each in drawn)]
        densities = [np.zeros(len(places)), *(each.log_density(places) for each in drawn)]
        log_mixture = logsumexp(densities, axis=0, b=np.array(counts, np.float64)[:, None])
        weights = np.zeros(len(places))
        chosen = quality > 0
        if chosen.any():
            log_weights = np.log(quality[chosen]) - log_mixture[chosen]
            weights[chosen] = np.exp(log_weights - logsumexp(log_weights))
        return places, weights

    def suggest_one(self) -> dict[str, float]:
        """The next point; `_score` is the weight of the simulation around which it lies."""
        if not self._proposals or self._proposals[-1].num_drawn >= self._size:
            self._proposals.append(self._next_proposal())
        return self.point(*self._proposals[-1].draw(self.random))

    def _next_proposal(self) -> Proposal:
        places, weights = self.weights()
        chosen = weights > 0
        if not chosen.any():
            return Proposal(np.zeros((0, len(self.cube))), np.zeros(0), sigma=self._sigma, share=0.0)
        progress = min(1.0, self._num_informed / self._ramp)
        self._num_informed += 1
        share = self._first_share + (self._share - self._first_share) * progress
        return Proposal(places[chosen], weights[chosen], sigma=self._sigma, share=share)
