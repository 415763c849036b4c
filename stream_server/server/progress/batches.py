"""The batches of one training step of all ranks, and its outcome."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# So much may be left out of the training without a warning.
SMALL_PART = 0.01


class StepCounts(NamedTuple):
    """The counts of one training step on one rank, or of all ranks together.

    `num_first` samples are drawn for the first time. Only where a loader of the user's makes batches, `num_added` are
    not of the stream, or were in a batch before, and `num_dropped` draws came into none, `num_first_dropped` of them
    first ones. Rank 0 alone has samples that it knows will never come, and `elapsed_us`, its microseconds of training.
    """

    num_first: int = 0
    num_added: int = 0
    num_dropped: int = 0
    num_first_dropped: int = 0
    num_missing: int = 0
    elapsed_us: int = 0


# Frozen ones take three times as long to make, which counts for one of each in every step.
@dataclass(kw_only=True, slots=True)
class Batch:
    """The samples of one training step on one rank.

    `keys` are the simulation ids and the time steps of the samples of the stream, shape (2, …); those that `is_first`
    tells are drawn for the first time. The other counts are those of `StepCounts`.
    """

    data: Any
    size: int
    keys: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    num_added: int = 0
    num_dropped: int = 0
    num_first_dropped: int = 0

    @property
    def num_first(self) -> int:
        return int(np.count_nonzero(self.is_first))

    @property
    def counts(self) -> StepCounts:
        return StepCounts(self.num_first, self.num_added, self.num_dropped, self.num_first_dropped)


@dataclass(kw_only=True, slots=True)
class UnionBatch:
    """The batches of one step: `own` of this rank, if it has one, and `sizes`, the number of samples of each rank.

    `counts` are those of all ranks. `lonely`: ranks that wait for data take part empty.
    """

    own: Batch | None = None
    sizes: tuple[int, ...]
    counts: StepCounts = field(default_factory=StepCounts)
    lonely: bool = False

    @property
    def num_draws(self) -> int:
        """The draws from the buffers that this step settles."""
        return self.num_samples - self.counts.num_added + self.counts.num_dropped

    @property
    def num_samples(self) -> int:
        return sum(self.sizes)

    @property
    def lowest_rank(self) -> int:
        return next(rank for rank, size in enumerate(self.sizes) if size)


@dataclass(kw_only=True, slots=True)
class StepOutcome:
    """The outcome of a step: this rank's loss, if it had a batch and returned one, and whether an update was made.

    `skipped`: the gradient was not finite, or no batch gave a loss, so that the model was left as it was.
    `sample_losses`: the loss of each sample, an array of the user's framework, if `training_step` returned that.
    `num_left_out`: samples first drawn in batches of any rank for which `training_step` returned None.
    `gradient_norm`: the norm of the gradient before it was clipped, if that is known and finite.
    """

    loss: float | None = None
    updated: bool = True
    skipped: bool = False
    num_left_out: int = 0
    gradient_norm: float | None = field(default=None, compare=False)
    sample_losses: Any = field(default=None, compare=False)
