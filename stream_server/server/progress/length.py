"""The length of a training, as far as it is known from study.json.

Why: docs/decisions/0039-one-clock.md
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLength:
    """The samples, draws and batches of a study in which every simulation sends all its steps.

    None stands for what cannot be known in advance. `samples` and `draws`, which count each use of a sample, are of the
    whole study whatever the number of ranks; `batches` estimates how many each rank trains if all of them are full.
    `samples_per_update` are those of all ranks in one optimizer update whose batches are full. After `max_batches` the
    study ends in any case.
    """

    samples: int | None = None
    draws: int | None = None
    batches: int | None = None
    max_batches: int | None = None
    accumulate: int = 1
    samples_per_update: int = 1

    @classmethod
    def of(
        cls,
        config: "StudyConfig",
        num_ranks: int,
        samples_of_ranks: Sequence[int] | None = None,
        *,
        draws_per_sample: float | None,
    ) -> Self:
        """The length of a study on this many ranks, of which a replay knows how many samples each will get.

        `draws_per_sample` is that of the buffer's policy.
        """
        training, per_simulation = config.training, config.samples_per_simulation
        shares = samples_of_ranks
        if shares is None and per_simulation is not None:
            num = config.study.simulations * per_simulation
            shares = [(num + rank) // num_ranks for rank in range(num_ranks)]
        draws, batches = None, None
        if shares is not None and draws_per_sample is not None:
            draws = round(sum(shares) * draws_per_sample)
            batches = math.ceil(max(shares) * draws_per_sample / training.batch_size)
            batches = min(batches, training.max_batches or batches)
        return cls(
            samples=None if shares is None else sum(shares),
            draws=draws,
            batches=batches,
            max_batches=training.max_batches,
            accumulate=training.accumulate,
            samples_per_update=num_ranks * training.batch_size * training.accumulate,
        )

    @property
    def updates(self) -> int | None:
        """Optimizer updates of the whole study, if all batches are full."""
        return None if self.batches is None else math.ceil(self.batches / self.accumulate)

    @property
    def updates_of_new_samples(self) -> int | None:
        """The number of updates that the samples would fill if each were drawn once."""
        if self.samples is None:
            return None
        num = math.ceil(self.samples / self.samples_per_update)
        return min(num, math.ceil((self.max_batches or num * self.accumulate) / self.accumulate))

    def less(self, num_missing: int) -> "TrainingLength":
        """The length if this many samples never come; fewer than none are those that come in addition."""
        if not num_missing or self.samples is None:
            return self
        samples = max(0, self.samples - num_missing)
        draws = None if self.draws is None else round(self.draws * samples / max(1, self.samples))
        return replace(self, samples=samples, draws=draws)
