"""The training of a study."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stream_server.failpoints import failpoint
from stream_server.server.ranks import Ranks
from stream_server.server.training.callbacks import Callbacks
from stream_server.server.training.lockstep import Stream, Turn, in_lockstep
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.saves import Saves
from stream_server.server.training.step import Step, StepOutcome
from stream_server.server.training.stop import StopReason, StopRequests

if TYPE_CHECKING:
    from stream_server.config import StudyConfig


class Validates(Protocol):
    """The held-out data, and when to look at it."""

    @property
    def best(self) -> dict[str, Any]: ...

    def is_due(self, batch: int) -> bool: ...

    def is_done(self, batch: int) -> bool: ...

    def run(self, batch: int) -> dict[str, float]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Trains on a stream until it ends on all ranks, or all agree to stop. `run` is collective; main thread only."""

    config: "StudyConfig"
    ranks: Ranks
    stream: Stream
    step: Step
    stops: StopRequests
    progress: Progress
    callbacks: Callbacks
    metrics: Metrics
    validation: Validates
    phases: Phases
    saves: Saves
    leave_at_s: float = math.inf
    each_round: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Train; afterwards `stops.agreed` says why it ended early, if it did.

        Raises:
            StreamServerError: this rank or another one failed, in the user's code or ours.
        """
        self.callbacks.on_train_start()
        self.progress.begin()
        turns = in_lockstep(
            self.stream,
            self.ranks,
            self.stops,
            phases=self.phases,
            all_end_at_first=self.config.training.uneven == "stop",
            needs_every_rank=self.step.needs_every_rank,
            at_boundary=self._may_stop,
            each_round=self._each_round,
            saves=self.saves,
        )
        due = False
        for turn in turns:
            self._train(turn)
            due = due or self.validation.is_due(self.progress.batches)
            if due and self.step.at_boundary:
                self._validate()
                due = False
            if self.progress.batches % self.config.training.log_every_batches == 0:
                self._log()
        last_update = self.step.finish()
        if last_update is not None:
            self.progress.count_update(last_update)
        if self.stops.agreed is not StopReason.SAVED and not self.validation.is_done(self.progress.batches):
            self._validate()
        self._log()
        if self.stops.agreed is not StopReason.SAVED:
            self.callbacks.on_train_end()

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

    def _validate(self) -> None:
        metrics = self.validation.run(self.progress.batches)
        self.progress.best = self.validation.best
        self.step.validated(metrics)
        values = {f"val/{name}": value for name, value in metrics.items()}
        self.metrics.write_reduced(self.progress.batches, self.progress.elapsed_s, values)

    def _log(self) -> None:
        with self.phases.measure("log"):
            self.metrics.write(self.progress.batches, self.progress.elapsed_s)

    def _may_stop(self) -> bool:
        limit = self.config.training.max_batches
        return self.step.at_boundary or (limit is not None and self.progress.batches >= limit)

    def _each_round(self) -> None:
        limits = self.config.training
        if limits.max_batches is not None and self.progress.batches >= limits.max_batches:
            self.stops.request(StopReason.MAX_BATCHES, f"{limits.max_batches} batches, as training.max_batches says")
        if limits.max_s is not None and self.progress.elapsed_s >= limits.max_s:
            self.stops.request(StopReason.MAX_S, f"{limits.max_s:g} s, as training.max_s says")
        if time.monotonic() >= self.leave_at_s:
            self.stops.request(StopReason.SAVED, "saved before the time limit; run it again to go on")
        self.each_round()
