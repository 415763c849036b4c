"""The training of a study."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from stream_server.failpoints import failpoint
from stream_server.server.normalization import Normalization
from stream_server.server.ranks import Ranks
from stream_server.server.training.callbacks import Callbacks
from stream_server.server.training.fingerprint import require_equal
from stream_server.server.training.limits import Limits
from stream_server.server.training.lockstep import Stream, Turn, in_lockstep
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.saves import Saves
from stream_server.server.training.step import Step, StepOutcome
from stream_server.server.training.stop import StopReason, StopRequests


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Trains on a stream until it ends on all ranks, or all agree to stop. `run` is collective; main thread only.

    All that happens beside the training steps, such as validation, checkpoints and logging, is done by `callbacks`.
    `needs_every_batch`: stop when the first rank has no more data (`uneven: stop`). `num_missing` tells, on rank 0, how
    many samples will never come.
    """

    ranks: Ranks
    stream: Stream
    step: Step
    stops: StopRequests
    limits: Limits
    progress: Progress
    callbacks: Callbacks
    metrics: Metrics
    phases: Phases
    saves: Saves
    normalization: Normalization
    needs_every_batch: bool = False
    num_missing: Callable[[], int] = lambda: 0

    def run(self) -> None:
        """Train; afterwards `stops.agreed` says why it ended early, if it did.

        Raises:
            StreamServerError: this rank or another one failed, in the user's code or ours.
        """
        self.progress.begin()
        self.callbacks.on_train_start()
        turns = in_lockstep(
            self.stream,
            self.ranks,
            self.stops,
            phases=self.phases,
            all_end_at_first=self.needs_every_batch,
            needs_every_rank=self.step.needs_every_rank,
            at_boundary=lambda: self.step.at_boundary or self.limits.has_all_batches,
            each_round=self.callbacks.on_round,
            elapsed_s=lambda: self.progress.elapsed_s,
            num_missing=self.num_missing,
            saves=self.saves,
        )
        for turn in turns:
            self._train(turn if self.normalization.is_ready else self._normalized(turn))
            self.callbacks.on_step_end()
        last_update = self.step.finish()
        # Before the model is validated and exported.
        require_equal(self.ranks, self.step.fingerprints)
        if last_update is not None:
            self.progress.count_update(last_update)
        if self.stops.agreed is None or self.stops.agreed.is_regular:
            self.progress.end()
        if self.stops.agreed is StopReason.SAVED:
            self.metrics.write(self.progress.batches, self.progress.elapsed_s)
        else:
            self.callbacks.on_train_end()

    def _normalized(self, turn: Turn) -> Turn:
        """The first batch was formed before there were statistics: it is formed again with those of all ranks."""
        self.normalization.sync()
        return turn if turn.batch is None else replace(turn, batch=self.stream.form_again())

    def _train(self, turn: Turn) -> None:
        data, batch_idx = None, self.progress.batches
        with self.phases.measure("step"):
            if turn.batch is not None:
                data = self.step.place(turn.batch.data)
                self.callbacks.on_batch_start(data, batch_idx)
            outcome = self.step.run(turn, data, batch_idx)
            failpoint("server.trained")
            self._count(turn, outcome)
            if turn.batch is not None:
                self.callbacks.on_batch_end(data, batch_idx, outcome.loss)

    def _count(self, turn: Turn, outcome: StepOutcome) -> None:
        self.progress.count_turn(turn)
        if outcome.updated:
            self.progress.count_update(outcome)
        if outcome.loss is not None:
            self.metrics.log("train/loss", outcome.loss)
