"""The sampler `generative`: a diffusion model that learns which parameters are difficult, and draws such ones."""

import numpy as np
import torch
from gest_api.vocs import VOCS  # type: ignore[import-untyped]
from torch import Tensor

from stream_server.samplers.learning import DEVIATION, Array, ModelGenerator
from stream_server.samplers.networks import Networks

NUM_LEVELS = 40
NUM_STEPS = 400
BATCH_SIZE = 256
UNCONDITIONAL_SHARE = 0.1
FREQUENCIES = 2.0 ** torch.arange(4) * torch.pi


class Generative(ModelGenerator):
    """Draws parameters from a conditional diffusion model of the parameters of simulations, given their difficulty.

    In the manner of "Learning Where to Simulate: Generative Active Sampling for Online PDE Surrogate Training" (OGAS),
    arXiv:2606.09949 (2026). The model is a small one of J. Ho, A. Jain and P. Abbeel, "Denoising Diffusion
    Probabilistic Models", arXiv:2006.11239 (2020), with the guidance of J. Ho and T. Salimans, arXiv:2207.12598 (2022).
    Difficulty is the rank of a simulation's score among all, from 0 to 1, so that its scale does not matter. The points
    of a generation are drawn for difficulties from `lowest` to 1. The network goes on learning from one generation to
    the next.

    Args:
        vocs: the parameters.
        seed: of the random numbers.
        lowest: the lowest difficulty for which points are drawn.
        guidance: how much more the difficulty counts than in the model; 0: as much.
        share, generation, fit_s, metric: those of `ModelGenerator`.
    """

    def __init__(
        self,
        vocs: VOCS,
        seed: int = 0,
        *,
        lowest: float = 0.9,
        guidance: float = 1.0,
        share: float = 0.75,
        generation: int = 10,
        fit_s: float = 10.0,
        metric: str = DEVIATION,
    ) -> None:
        super().__init__(vocs, seed, metric, share=share, generation=generation, fit_s=fit_s)
        if not (0 <= lowest <= 1 and 0 <= guidance < np.inf):
            raise ValueError(
                f"Generative needs 0 <= lowest <= 1 and guidance >= 0, but has lowest {lowest} and guidance {guidance}"
            )
        self._lowest, self._guidance = lowest, guidance
        self._torch = torch.Generator().manual_seed(seed % 2**63)
        # A place, the level of noise as waves, the difficulty, and whether that is given.
        num_inputs = len(self.cube) + 2 * len(FREQUENCIES) + 2
        self._network = Networks(1, num_inputs, len(self.cube), self._torch, lr=3e-3)
        # The cosine schedule of A. Nichol and P. Dhariwal, arXiv:2102.09672 (2021).
        waves = torch.cos((torch.arange(NUM_LEVELS + 1) / NUM_LEVELS + 0.008) / 1.008 * torch.pi / 2) ** 2
        self._kept = (waves / waves[0])[1:].clamp(1e-4, 1.0)

    def learn(self, places: Array, scores: Array, until: float) -> None:
        """Continue to learn the noise in the places of simulations, given their difficulty."""
        clean = torch.from_numpy(2 * places - 1).float()
        # Equal scores have one rank, so that scores of 0 are not told apart.
        values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts + 1) / 2) / max(1, len(scores) - 1)
        difficulty = torch.from_numpy(ranks[inverse] if len(values) > 1 else scores).float()

        def loss() -> Tensor:
            rows = torch.randint(len(clean), (BATCH_SIZE,), generator=self._torch)
            levels = torch.randint(NUM_LEVELS, (BATCH_SIZE,), generator=self._torch)
            noise = torch.randn(BATCH_SIZE, clean.shape[1], generator=self._torch)
            kept = self._kept[levels][:, None]
            noisy = kept.sqrt() * clean[rows] + (1 - kept).sqrt() * noise
            is_given = torch.rand(BATCH_SIZE, generator=self._torch) >= UNCONDITIONAL_SHARE
            return (self._noise(noisy, levels, difficulty[rows], is_given) - noise).square().mean()

        self._network.descend(loss, NUM_STEPS, until)

    @torch.no_grad()
    def choose(self, num: int) -> tuple[Array, Array]:
        """Places made of noise, and the difficulties for which they were made."""
        difficulty = self._lowest + (1 - self._lowest) * torch.rand(num, generator=self._torch)
        places = torch.randn(num, len(self.cube), generator=self._torch)
        given = torch.ones(num, dtype=torch.bool)
        for number in reversed(range(NUM_LEVELS)):
            level = torch.full((num,), number)
            noise = self._noise(places, level, difficulty, given)
            noise = noise + self._guidance * (noise - self._noise(places, level, difficulty, ~given))
            kept = self._kept[number]
            before = self._kept[number - 1] if number else torch.ones(())
            # What is outside the cube is none of the study's: steps begin from inside.
            clean = ((places - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
            step = 1 - kept / before
            mean = (before.sqrt() * step * clean + (1 - step).sqrt() * (1 - before) * places) / (1 - kept)
            spread = (step * (1 - before) / (1 - kept)).sqrt()
            places = mean + spread * torch.randn(num, len(self.cube), generator=self._torch)
        return (places.double().numpy() + 1) / 2, difficulty.double().numpy()

    def _noise(self, places: Tensor, levels: Tensor, difficulty: Tensor, is_given: Tensor) -> Tensor:
        """The noise that the network sees in places of shape (n, d)."""
        phases = (levels / NUM_LEVELS)[:, None] * FREQUENCIES
        condition = torch.stack([torch.where(is_given, 2 * difficulty - 1, 0.0), is_given.float()], dim=1)
        return self._network(torch.cat([places, phases.sin(), phases.cos(), condition], dim=1)[None])[0]
