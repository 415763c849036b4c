"""How long a training will be, as far as study.json tells."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """What a study will train on if every simulation sends all its steps; None is what cannot be known in advance.

    `samples` of the whole study, `batches` that each rank trains, and `samples_per_update`: the samples of all ranks in
    one optimizer update whose batches are full.
    """

    samples: int | None = None
    batches: int | None = None
    accumulate: int = 1
    samples_per_update: int = 1

    @classmethod
    def of(cls, config: "StudyConfig", num_ranks: int) -> Self:
        """The length of a study on so many ranks."""
        training, steps = config.training, config.study.time_steps
        samples = None if steps is None else config.study.simulations * steps.num
        ratio = draws_per_sample(config)
        batches = None
        if samples is not None and ratio is not None:
            batches = math.ceil(math.ceil(samples / num_ranks) * ratio / training.batch_size)
            batches = min(batches, training.max_batches or batches)
        return cls(
            samples=samples,
            batches=batches,
            accumulate=training.accumulate,
            samples_per_update=num_ranks * training.batch_size * training.accumulate,
        )

    @property
    def updates(self) -> int | None:
        """Optimizer updates of the whole study."""
        return None if self.batches is None else math.ceil(self.batches / self.accumulate)


def draws_per_sample(config: "StudyConfig") -> float | None:
    """How often each sample is drawn in all; None when the reservoir draws as often as there is time."""
    match config.buffer.policy:
        case "fifo":
            return 1.0
        case "firo":
            return float(config.buffer.pseudo_epochs)
        case _:
            return config.training.draws_per_sample
