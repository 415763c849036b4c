"""How far a training is."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stream_server.server.training.length import Length

if TYPE_CHECKING:
    from stream_server.server.training.lockstep import Turn
    from stream_server.server.training.step import StepOutcome

NOT_SAVED = ("length", "lr_clock", "_clock", "_start", "_before_s")


class Progress:
    """The one clock of a study: its counts, the same on all ranks since they come from the control rounds.

    A sample is counted when its first draw is settled by an update: in `samples` when it was trained, in `skipped`
    when the gradient was not finite. `draws` counts every use of a sample. `best` is the batch and the loss of the
    best validation so far. `agreed_s` are the seconds of training that rank 0 told in the last round.

    `length` says how long the study will be, as far as that is known; `lr_clock` what steps learning-rate schedules.
    """

    def __init__(
        self,
        num_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
        *,
        length: Length | None = None,
        lr_clock: str = "updates",
    ) -> None:
        self.length = length or Length()
        self.lr_clock = lr_clock
        self.batches = 0
        self.updates = 0
        self.samples = 0
        self.skipped = 0
        self.draws = 0
        self.lonely_steps = 0
        self.batches_per_rank = [0] * num_ranks
        self.best: dict[str, Any] = {}
        self.agreed_s = 0.0
        self._lr_samples = 0
        self._lr_steps = 0
        self._unsettled = 0
        self._clock = clock
        self._start = clock()
        self._before_s = 0.0

    def begin(self) -> None:
        """The first batch is waited for: the time of the training starts, or goes on."""
        self._start = self._clock() - self._before_s

    @property
    def expected_batches(self) -> int | None:
        """Batches of the whole run, None when their number is not known in advance."""
        return self.length.batches

    @property
    def expected_samples(self) -> int | None:
        """Samples of the whole run, None when their number is not known in advance."""
        return self.length.samples

    @property
    def fraction(self) -> float | None:
        """How much of the run is done, 0 to 1: by batches, or else by samples that were drawn; None when unknown."""
        done, expected = self.batches, self.length.batches
        if expected is None:
            done, expected = self._num_drawn, self.length.samples
        return None if expected is None else min(1.0, done / expected)

    @property
    def lr_steps(self) -> int:
        """How many steps a learning-rate schedule is to have taken: one each update, or each update's worth of samples.

        An update whose gradient was not finite counts for the samples it used, and not as an update.
        """
        return self.updates if self.lr_clock == "updates" else self._lr_steps

    @property
    def expected_lr_steps(self) -> int | None:
        """How many they will be in the whole run, None when that is not known in advance."""
        if self.lr_clock == "updates":
            return self.length.updates
        samples = self.length.samples
        return None if samples is None else math.ceil(samples / self.length.samples_per_update)

    @property
    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self._clock() - self._start

    def count_turn(self, turn: "Turn") -> None:
        """One step of the union batch was taken."""
        self.agreed_s = turn.elapsed_s
        self.batches += 1
        self.draws += turn.num_samples
        self.lonely_steps += turn.lonely
        self.batches_per_rank = [num + (size > 0) for num, size in zip(self.batches_per_rank, turn.sizes, strict=True)]
        self._unsettled += turn.num_first

    def count_update(self, outcome: "StepOutcome") -> None:
        """The optimizer used, or refused, all that was drawn since the last time."""
        self._lr_samples += self._unsettled
        new_steps, self._lr_samples = divmod(self._lr_samples, self.length.samples_per_update)
        self._lr_steps += new_steps
        if outcome.skipped:
            self.skipped += self._unsettled
        else:
            self.updates += 1
            self.skipped += outcome.num_left_out
            self.samples += self._unsettled - outcome.num_left_out
        self._unsettled = 0

    @property
    def _num_drawn(self) -> int:
        return self.samples + self.skipped + self._unsettled

    def state_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name not in NOT_SAVED}
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
