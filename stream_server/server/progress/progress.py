"""The progress of a training: the one clock that all ranks agree on.

Why: docs/decisions/0039-one-clock.md
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stream_server.server.progress.length import TrainingLength

if TYPE_CHECKING:
    from stream_server.server.progress.batches import StepOutcome, UnionBatch

NOT_SAVED = ("length", "lr_clock", "_clock", "_start", "_before_s")


class Progress:
    """The clock of a study: its counts, the same on all ranks since they come from the control rounds.

    A sample is counted when its first draw is settled by an update: in `samples` when it was trained, in `skipped`
    when the gradient was not finite, in `dropped` when a loader of the user's left it out. `draws` counts every draw of
    a sample, `added` the samples of batches that were not drawn for them. `best` is the batch and the loss of the best
    validation so far. `agreed_s` are the seconds of training that rank 0 told in the last control round. `rounds` are
    those of `study.rounds` that have ended.

    `length` is the length of the study, as far as it is known, and `num_missing` the number of samples that are known
    by now never to come.

    A learning-rate schedule is to have taken `lr_steps` steps. They follow how much of the run is done: by draws when
    `lr_clock` is "updates", by new samples when it is "samples". So neither the number of ranks nor batches that are
    not full change where a schedule stands, and at the end of the run it has taken all `expected_lr_steps`.
    """

    def __init__(
        self,
        num_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
        *,
        length: TrainingLength | None = None,
        lr_clock: str = "updates",
    ) -> None:
        self.length = length or TrainingLength()
        self.lr_clock = lr_clock
        self.batches = 0
        self.updates = 0
        self.samples = 0
        self.skipped = 0
        self.dropped = 0
        self.added = 0
        self.draws = 0
        self.lonely_steps = 0
        self.rounds = 0
        self.batches_per_rank = [0] * num_ranks
        self.best: dict[str, Any] = {}
        self.agreed_s = 0.0
        self.lr_steps = 0
        self.num_missing = 0
        self._fraction = 0.0
        self._draws_beyond = 0
        self._unsettled = 0
        self._drawn_before_round = 0
        self._schedules_of: tuple[int | None, int] | None = None
        self._clock = clock
        self._start = clock()
        self._before_s = 0.0

    def begin(self) -> None:
        """Start the clock of the training, or let it go on, before the first batch."""
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
        """The fraction of the run that is done, 0 to 1, by draws or else by new samples; None if it is not known.

        It never falls, but for a study that is continued with more to train or draw, and is 1 at the end.
        """
        fraction, ends = self._fraction, self._ends(by_draws=self.length.draws is not None)
        for done, total in ends:
            fraction = max(fraction, min(1.0, done / max(1, total)))
        return fraction if ends else None

    @property
    def expected_lr_steps(self) -> int | None:
        """The number of steps of a learning-rate schedule in the whole run, None if it is not known in advance.

        It is the number of updates if all batches are full. What it was at the first start stays, since the schedules
        were built with it.
        """
        return self._schedules[0]

    @property
    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self._clock() - self._start

    def count_batch(self, union_batch: "UnionBatch") -> None:
        """Count one step of the union batch."""
        counts = union_batch.counts
        self.agreed_s = counts.elapsed_us / 1e6
        self.batches += 1
        self.draws += union_batch.num_draws
        self.dropped += counts.num_first_dropped
        self.added += counts.num_added
        self.num_missing = counts.num_missing
        self.lonely_steps += union_batch.lonely
        self.batches_per_rank = [
            num + (size > 0) for num, size in zip(self.batches_per_rank, union_batch.sizes, strict=True)
        ]
        self._unsettled += counts.num_first
        self._fraction = self.fraction or 0.0

    def count_update(self, outcome: "StepOutcome") -> None:
        """Count one update, which used or skipped all that was drawn since the last one."""
        if outcome.skipped:
            self.skipped += self._unsettled
        else:
            self.updates += 1
            self.skipped += outcome.num_left_out
            self.samples += self._unsettled - outcome.num_left_out
        self._unsettled = 0
        self.lr_steps = max(self.lr_steps, self._due_lr_steps())

    def change_draws(self, draws_per_sample: float) -> None:
        """The samples that are yet to be drawn for the first time are drawn so often, unlike those before."""
        self._draws_beyond = self.draws - round(draws_per_sample * self._num_drawn)
        self._fraction = 0.0

    @property
    def round_has_samples(self) -> bool:
        """Whether a sample was drawn for the first time since the last round has ended."""
        return self._num_drawn > self._drawn_before_round

    def end_round(self) -> None:
        """Count a round, whose samples are all trained."""
        self.rounds += 1
        self._drawn_before_round = self._num_drawn

    def end(self) -> None:
        """Take the schedules to their end: all that there was to train is trained, however much that was."""
        self._fraction = 1.0
        self.lr_steps = max(self.lr_steps, self.expected_lr_steps or 0)

    @property
    def _num_drawn(self) -> int:
        return self.samples + self.skipped + self.dropped + self._unsettled

    @property
    def _schedules(self) -> tuple[int | None, int]:
        """The number of steps that schedules were built with at the first start, and the samples of an update then."""
        length = self.length
        num_steps = length.updates if self.lr_clock == "updates" else length.updates_of_new_samples
        return self._schedules_of or (num_steps, length.samples_per_update)

    def _ends(self, *, by_draws: bool) -> list[tuple[int, int]]:
        """Pairs of done and total, one for each count that ends the run once it is full."""
        length = self.length.less(self.num_missing) if self.num_missing else self.length
        done, total = (self.draws, length.draws) if by_draws else (self._num_drawn, length.samples)
        if total is None:
            return []
        total += self._draws_beyond if by_draws else 0
        return [(done, total), *([(self.batches, length.max_batches)] if length.max_batches else [])]

    def _due_lr_steps(self) -> int:
        is_by_updates, (num_steps, samples_per_update) = self.lr_clock == "updates", self._schedules
        if num_steps is None:
            return self.updates if is_by_updates else self._num_drawn // samples_per_update
        num_due = 0
        for done, total in self._ends(by_draws=is_by_updates):
            num_due = max(num_due, min(num_steps, num_steps * done // max(1, total)))
        return num_due

    @property
    def _asked(self) -> list[int | None]:
        return [self.length.samples, self.length.max_batches]

    def state_dict(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name not in NOT_SAVED}
        return {**counts, "_schedules_of": list(self._schedules), "elapsed_s": self.elapsed_s, "asked": self._asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue; on another number of ranks, rank 0 takes the batches of those that are no more."""
        counts = dict(state)
        if counts.pop("asked") != self._asked:
            # A study that is continued with more to train is less far than it was.
            counts["_fraction"] = 0.0
        self._before_s = counts.pop("elapsed_s")
        self._start = self._clock() - self._before_s
        before, num_ranks = counts.pop("batches_per_rank"), len(self.batches_per_rank)
        num_steps, samples_per_update = counts.pop("_schedules_of")
        self._schedules_of = (num_steps, samples_per_update)
        vars(self).update(counts)
        self.batches_per_rank = [*before, *[0] * num_ranks][:num_ranks]
        self.batches_per_rank[0] += sum(before[num_ranks:])
