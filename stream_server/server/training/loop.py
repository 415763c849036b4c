"""The training loop, and its limits in study.json."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.batches import Batch, StepOutcome, UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.control_round import Saves, Stream, in_lockstep
from stream_server.server.training.fingerprint import require_equal
from stream_server.server.training.rounds import Rounds
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import Step
from stream_server.server.user.normalization import Normalization
from stream_server.wording import counted, listed

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings


class TrainingLimits(Callback):
    """Asks for a stop after `training.max_batches`, after `training.max_s`, and before the time limit of the job.

    `leave_at_s` is that limit on the monotonic clock.
    """

    def __init__(
        self, settings: "TrainingSettings", progress: Progress, stops: StopRequests, *, leave_at_s: float = math.inf
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._stops = stops
        self._leave_at_s = leave_at_s

    @property
    def has_all_batches(self) -> bool:
        """True when no further batch may be trained."""
        limit = self._settings.max_batches
        return limit is not None and self._progress.batches >= limit

    def on_round(self, server: Any) -> None:
        settings = self._settings
        if settings.max_batches is not None and self._progress.batches >= settings.max_batches:
            text = f"{counted(settings.max_batches, 'batch')}, as training.max_batches says"
            self._stops.request(StopReason.MAX_BATCHES, text)
        if settings.max_s is not None and self._progress.elapsed_s >= settings.max_s:
            self._stops.request(StopReason.MAX_S, f"{settings.max_s:g} s, as training.max_s says")
        if time.monotonic() >= self._leave_at_s:
            self._stops.request(StopReason.SAVED, "saved before the time limit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Trains on a stream until it ends on all ranks, or all agree to stop. `run` is collective; main thread only.

    All that happens beside the training steps, such as validation, checkpoints and logging, is done by `callbacks`.
    `needs_every_batch`: stop when the first rank has no more data (`uneven: stop`). `num_missing` gives, on rank 0, the
    number of samples that will never come. `rounds` are those of `study.rounds`. `note_losses` is told of each batch of
    this rank and its outcome, `note_batch` of each before it is trained.
    """

    ranks: Ranks
    stream: Stream
    step: Step
    stops: StopRequests
    limits: TrainingLimits
    progress: Progress
    callbacks: Callbacks
    metrics: Metrics
    phases: Phases
    saves: Saves
    normalization: Normalization
    needs_every_batch: bool = False
    num_missing: Callable[[], int] = lambda: 0
    rounds: Rounds | None = None
    note_losses: Callable[[Batch, StepOutcome], None] | None = None
    note_batch: Callable[[Batch], None] = lambda batch: None

    def run(self) -> None:
        """Train; afterwards `stops.agreed` says why it ended early, if it did.

        Raises:
            StreamServerError: this rank or another one failed, in the user's code or ours.
        """
        self.progress.begin()
        restored = self.step.learned() if self.progress.batches else {}
        self.callbacks.tell("on_train_start")
        if restored:
            self._require_unchanged(restored)
        union_batches = in_lockstep(
            self.stream,
            self.ranks,
            self.stops,
            phases=self.phases,
            all_end_at_first=self.needs_every_batch,
            needs_every_rank=self.step.needs_every_rank,
            follows=self._end_round,
            at_boundary=lambda: self.step.at_boundary or self.limits.has_all_batches,
            each_round=partial(self.callbacks.tell, "on_round"),
            elapsed_s=lambda: self.progress.elapsed_s,
            num_missing=self.num_missing,
            saves=self.saves,
        )
        for union_batch in union_batches:
            if not self.normalization.is_ready:
                self._normalize(union_batch)
            self._train(union_batch)
            self.callbacks.tell("on_step_end")
        # What follows reads the user's state.
        self.stream.quiesce()
        self._finish_update()
        # Before the model is validated and exported.
        require_equal(self.ranks, self.step.fingerprints)
        self.step.compare_saved()
        if self.stops.agreed is None or self.stops.agreed.is_regular:
            self.progress.end()
        if self.stops.agreed is StopReason.SAVED:
            self.metrics.write(self.progress.batches, self.progress.elapsed_s)
        else:
            self.callbacks.tell("on_train_end")

    def _end_round(self) -> bool:
        """All that has come is trained: whether another round follows. Collective."""
        if self.rounds is None:
            return False
        self.stream.quiesce()
        if not self.step.at_boundary:
            self._finish_update()
        return self.rounds.end()

    def _finish_update(self) -> None:
        last_update = self.step.finish()
        if last_update is not None:
            self.progress.count_update(last_update)
            self._log(last_update)

    def _require_unchanged(self, restored: Mapping[str, int | None]) -> None:
        """Refuse an `on_train_start` that overwrites what a restart has restored.

        Raises:
            UserCodeError: it does.
        """
        now = self.step.learned()
        changed = [name for name, value in restored.items() if value is not None and now.get(name, value) != value]
        if changed:
            raise UserCodeError(
                f"on_train_start, of the server class or a callback, changes what this restart has restored, so that "
                f"its training would be lost: {listed(changed)}. Load and make weights in prepare_training_attributes, "
                "which is called before those of a checkpoint are restored, or here only if self.progress.batches is 0"
            )

    def _normalize(self, union_batch: UnionBatch) -> None:
        """The first batch was formed before there were statistics: it is formed again with those of all ranks."""
        self.normalization.sync()
        if union_batch.own is not None:
            union_batch.own = self.stream.form_again()

    def _train(self, union_batch: UnionBatch) -> None:
        data, batch_idx = None, self.progress.batches
        if self.rounds is not None:
            self.rounds.note(union_batch)
        own = union_batch.own
        with self.phases.measure("step"):
            if own is not None:
                self.note_batch(own)
                data = self.step.to_device(own.data)
                self.callbacks.tell("on_batch_start", data, batch_idx)
            outcome = self.step.run(union_batch, data, batch_idx)
            failpoint("server.trained")
            self.progress.count_batch(union_batch)
            if outcome.updated:
                self.progress.count_update(outcome)
            self._log(outcome)
            if own is not None:
                if self.note_losses is not None:
                    self.note_losses(own, outcome)
                self.callbacks.tell("on_batch_end", data, batch_idx, outcome.loss)

    def _log(self, outcome: StepOutcome) -> None:
        if outcome.loss is not None:
            self.metrics.note("train/loss", outcome.loss)
        if outcome.gradient_norm is not None:
            self.metrics.note("grad/norm", outcome.gradient_norm)
