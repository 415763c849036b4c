"""How far a training is."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_server.server.training.lockstep import Turn
    from stream_server.server.training.step import StepOutcome


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

    def begin(self) -> None:
        """The first batch is waited for: the time of the training starts."""
        self._start = self._clock()

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
        counts = {name: value for name, value in vars(self).items() if name not in ("_clock", "_start")}
        return {**counts, "elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts = dict(state)
        self._start = self._clock() - counts.pop("elapsed_s")
        vars(self).update(counts)
