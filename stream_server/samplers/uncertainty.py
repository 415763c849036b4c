"""The sampler `uncertainty`: the next parameters lie where an ensemble of networks disagrees about the score."""

import numpy as np
import torch
from gest_api.vocs import VOCS  # type: ignore[import-untyped]

from stream_server.samplers.learning import DEVIATION, Array, ModelGenerator
from stream_server.samplers.networks import Networks

NUM_NETWORKS = 5
NUM_STEPS = 300
NUM_CANDIDATES = 2048
SHARPNESS = 4.0


class Uncertainty(ModelGenerator):
    """Chooses among random candidates by the standard deviation of an ensemble that predicts the score.

    The networks differ in their first weights and in the simulations that they learn from, a bootstrap of all, as in
    B. Lakshminarayanan, A. Pritzel and C. Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles", NeurIPS 2017, arXiv:1612.01474. A candidate counts as much as `deviation + exploit * mean`, the upper
    confidence bound of N. Srinivas et al., ICML 2010, arXiv:0912.3995; with `exploit` 0 the deviation alone. Candidates
    are drawn with a probability that grows with it, so that the points of one generation differ.

    Args:
        vocs: the parameters.
        seed: of the random numbers.
        exploit: weight of the predicted score.
        share, generation, fit_s, metric: those of `ModelGenerator`.
    """

    def __init__(
        self,
        vocs: VOCS,
        seed: int = 0,
        *,
        exploit: float = 0.5,
        share: float = 0.75,
        generation: int = 10,
        fit_s: float = 10.0,
        metric: str = DEVIATION,
    ) -> None:
        super().__init__(vocs, seed, metric, share=share, generation=generation, fit_s=fit_s)
        if not 0 <= exploit < np.inf:
            raise ValueError(f"exploit must be 0 or more, but is {exploit}")
        self._exploit = exploit
        self._torch = torch.Generator().manual_seed(seed % 2**63)
        self._networks: Networks | None = None

    def learn(self, places: Array, scores: Array, until: float) -> None:
        """Fit an ensemble again: one that went on from the last fit would have lost its differences."""
        num, dimensions = places.shape
        self._networks = Networks(NUM_NETWORKS, dimensions, 1, self._torch, lr=1e-2)
        drawn = torch.from_numpy(self.random.integers(num, size=(NUM_NETWORKS, num)))
        inputs = torch.from_numpy(2 * places - 1).float()[drawn]
        targets = torch.from_numpy(scores).float()[drawn][..., None]
        networks = self._networks
        networks.descend(lambda: (networks(inputs) - targets).square().mean((1, 2)).sum(), NUM_STEPS, until)

    def choose(self, num: int) -> tuple[Array, Array]:
        """The candidates with the largest of noisy values: drawn without replacement (Gumbel-top-k)."""
        assert self._networks is not None
        places = self.random.random((max(NUM_CANDIDATES, num), len(self.cube)))
        with torch.no_grad():
            predicted = self._networks(torch.from_numpy(2 * places - 1).float().expand(NUM_NETWORKS, -1, -1))
        values = predicted[..., 0].double().numpy()
        worth = np.maximum(values.std(0) + self._exploit * np.maximum(values.mean(0), 0.0), 1e-12)
        best = np.argsort(-(SHARPNESS * np.log(worth) + self.random.gumbel(size=len(places))))[:num]
        return places[best], worth[best]
