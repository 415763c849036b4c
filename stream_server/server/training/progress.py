"""How far a training is."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_server.server.training.lockstep import Turn
    from stream_server.server.training.step import StepOutcome

TIMES = ("_clock", "_start", "_before_s")


class Progress:
    """Counts of the whole study, the same on all ranks since they come from the control rounds.

    A sample is counted when its first draw is settled by an update: in `samples` when it was trained, in `skipped`
    when the gradient was not finite. `draws` counts every use of a sample. `best` is the batch and the loss of the
    best validation so far.
    """

    def __init__(self, num_ranks: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.batches = 0
        self.updates = 0
        self.samples = 0
        self.skipped = 0
        self.draws = 0
        self.lonely_steps = 0
        self.batches_per_rank = [0] * num_ranks
        self.best: dict[str, Any] = {}
        self._unsettled = 0
        self._clock = clock
        self._start = clock()
        self._before_s = 0.0

    def begin(self) -> None:
        """The first batch is waited for: the time of the training starts, or goes on."""
        self._start = self._clock() - self._before_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self._clock() - self._start

    def count_turn(self, turn: "Turn") -> None:
        """One step of the union batch was taken."""
        self.batches += 1
        self.draws += turn.num_samples
        self.lonely_steps += turn.lonely
        self.batches_per_rank = [num + (size > 0) for num, size in zip(self.batches_per_rank, turn.sizes, strict=True)]
        self._unsettled += turn.num_first

    def count_update(self, outcome: "StepOutcome") -> None:
        """The optimizer used, or refused, all that was drawn since the last time."""
        if outcome.skipped:
            self.skipped += self._unsettled
        else:
            self.updates += 1
            self.samples += self._unsettled
        self._unsettled = 0

    def state_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name not in TIMES}
        return {**counts, "elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue; on another number of ranks, rank 0 takes the batches of those that are no more."""
        counts = dict(state)
        self._before_s = counts.pop("elapsed_s")
        self._start = self._clock() - self._before_s
        before, num_ranks = counts.pop("batches_per_rank"), len(self.batches_per_rank)
        vars(self).update(counts)
        self.batches_per_rank = [*before, *[0] * num_ranks][:num_ranks]
        self.batches_per_rank[0] += sum(before[num_ranks:])
