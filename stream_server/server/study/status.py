"""The status of a study at one moment, and the board that shows it: on the terminal, to operators and to Prometheus."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stream_server.messages.operator import Change, TrainingStatus
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.checkpoint.agreement import SaveCounts
from stream_server.server.intake.source import Source
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.study.composition import Composition
from stream_server.server.user.callbacks import Callback

INTERVAL_S = 0.25
RATE_WINDOW_S = 30.0
STEADY_S = 10.0
WAIT = "wait_for_data"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The study as rank 0's main thread last saw it; `training` is what operators are told of it.

    `simulations` counts by state. Of the time steps that all ranks have `received`, `expected` are to come in all.
    `trained_per_s` counts the first use of each sample alone, and `waiting` is the share of time without data.
    Training begins when the population has reached the `watermark`; a buffer takes `room` more samples now, also in the
    place of others. `awaited` is what must come from outside for the study to go on, "" if nothing must. A study that
    `writes_files` trains on nothing. `checkpoint_at_s` is the time at which the last checkpoint was seen committed.
    """

    training: TrainingStatus
    simulations: Mapping[str, int] = field(default_factory=dict)
    received: int = 0
    expected: int | None = None
    received_per_s: float = 0.0
    trained_per_s: float = 0.0
    draws: int = 0
    waiting: float | None = None
    loss: float | None = None
    validation_loss: float | None = None
    room: int = 0
    watermark: int = 1
    phases_s: Mapping[str, float] = field(default_factory=dict)
    awaited: str = ""
    restarts: int = 0
    warnings: Sequence[str] = ()
    writes_files: bool = False
    checkpoints: int = 0
    failed_checkpoints: int = 0
    checkpoint_at_s: float | None = None


class Mark(NamedTuple):
    """Some counts at one moment, or how much they grow in a second."""

    now: float
    batches: float = 0
    draws: float = 0
    trained: float = 0
    received: float = 0
    fraction: float = 0.0
    waited_s: float = 0.0


class Rates:
    """Growth of counts over the last seconds; `is_steady` once that is over enough of them to foretell."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self.is_steady = False

    def note(self, mark: Mark) -> Mark:
        """Take the counts of a moment into account; returns what each grows by in a second."""
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].now < mark.now - RATE_WINDOW_S:
            self._marks.popleft()
        first = self._marks[0]
        seconds = mark.now - first.now
        self.is_steady = seconds >= STEADY_S
        return Mark(*((new - old) / seconds if seconds > 0 else 0.0 for old, new in zip(first, mark, strict=True)))


class StatusBoard(Callback):
    """Takes a snapshot in a round now and then, and gives it to all who show it. Rank 0's main thread.

    As a gauge it logs what the ranks receive.
    """

    def __init__(
        self,
        study: Composition,
        source: Source,
        shows: Sequence[Callable[[Snapshot], None]],
        *,
        saves: SaveCounts,
        restarts: int,
        warnings: Callable[[], Sequence[str]],
        changes: tuple[Change, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._study = study
        self._source = source
        self._shows = shows
        self._saves = saves
        self._restarts = restarts
        self._warnings = warnings
        self._changes = changes
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_s = -math.inf
        self._rates = Rates()
        self._num_saves = 0
        self._saved_at_s: float | None = None
        self._newest: Snapshot | None = None

    def __call__(self, metrics: Metrics, /) -> None:
        newest = self._newest
        if newest is not None and newest.waiting is not None:
            metrics.log("speed/received_per_s", newest.received_per_s)
            metrics.log("simulations/running", newest.simulations.get(SimulationPhase.RUNNING, 0))

    def on_round(self, server: Any) -> None:
        now = self._clock()
        if now >= self._next_s:
            self._next_s = now + INTERVAL_S
            self._show(now)

    def on_train_end(self, server: Any) -> None:
        self._show(self._clock())

    def _show(self, now: float) -> None:
        self._newest = self._snapshot(now)
        for show in self._shows:
            show(self._newest)

    def _snapshot(self, now: float) -> Snapshot:
        study, config, progress, buffer = self._study, self._study.config, self._study.progress, self._study.buffer
        loss, validation_loss = map(study.metrics.latest.get, ("train/loss", "val/loss"))
        phases_s, saves = study.phases.seconds, self._saves
        simulations, samples = self._source.counts()
        # Other ranks tell a little later what they have received than what they have trained.
        received = max(samples, progress.samples)
        mark = Mark(
            now=now,
            batches=progress.batches,
            draws=progress.draws,
            trained=progress.samples,
            received=received,
            fraction=progress.fraction or 0.0,
            waited_s=phases_s.get(WAIT, 0.0),
        )
        per_s, is_steady = self._rates.note(mark), self._rates.is_steady
        if saves.committed > self._num_saves:
            self._num_saves, self._saved_at_s = saves.committed, self._wall_clock()
        # Of several passes over files, nobody counts the samples that are there before each.
        steps = config.study.time_steps if config.offline.epochs == 1 else None
        return Snapshot(
            training=TrainingStatus(
                at_s=now,
                batches=progress.batches,
                samples=progress.samples,
                batches_per_s=per_s.batches,
                draws_per_s=per_s.draws,
                loss=_finite(loss),
                validation_loss=_finite(validation_loss),
                population=buffer.population,
                capacity=buffer.capacity,
                fraction=progress.fraction,
                elapsed_s=progress.elapsed_s,
                left_s=(1.0 - mark.fraction) / per_s.fraction if is_steady and per_s.fraction > 0 else None,
                is_degraded=saves.degraded,
                rounds=None if config.study.rounds is None else (progress.rounds, config.study.rounds.number),
                changes=self._changes,
            ),
            simulations=simulations,
            received=received,
            expected=None if steps is None else steps.num * sum(simulations.values()),
            received_per_s=per_s.received,
            trained_per_s=per_s.trained,
            draws=progress.draws,
            waiting=min(1.0, per_s.waited_s) if per_s.now else None,
            loss=loss,
            validation_loss=validation_loss,
            room=buffer.room,
            # A policy of the user's need not take it.
            watermark=1 if config.buffer.has_own_policy else config.buffer.watermark,
            phases_s=phases_s,
            awaited=self._source.awaited,
            restarts=self._restarts,
            warnings=self._warnings(),
            writes_files=config.offline.write_files,
            checkpoints=saves.committed,
            failed_checkpoints=saves.failed,
            checkpoint_at_s=self._saved_at_s,
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
