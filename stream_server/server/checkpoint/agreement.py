"""The agreement of all ranks on checkpoints: when one is taken, and when it is complete.

Why: docs/decisions/0040-first-checkpoint.md
"""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from stream_server.errors import StaleIncarnation
from stream_server.failpoints import failpoint
from stream_server.server.checkpoint.capture import StudyCapture
from stream_server.server.checkpoint.failed_saves import FailedSaves
from stream_server.server.checkpoint.folder import MILESTONE_FILE
from stream_server.server.checkpoint.saver import Saver
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.control_round import SaveState, agree
from stream_server.server.user.callbacks import Callback
from stream_server.storage.folders import PendingFile, records_from_json, records_to_json

# Until there is a checkpoint, a crash takes the study back to its beginning.
FIRST_S = 60.0
LOOK_S = 0.05
REST = 10


class Stage(Enum):
    """The stage of the checkpoint under way; the same on all ranks, since it follows from the sums of the rounds."""

    NONE = auto()
    DUE = auto()
    WRITING = auto()
    COMMITTING = auto()


@dataclass(kw_only=True, slots=True)
class SaveCounts:
    """The numbers of committed and failed checkpoints of this incarnation; `degraded`: the last one failed."""

    committed: int = 0
    failed: int = 0
    degraded: bool = False


class CheckpointAgreement(Callback):
    """Takes a checkpoint when `schedule` or `every_s` say so, when simulations are under pressure, or when asked.

    The first of a study is due after a minute, even if `every_s` is longer. These seconds are no part of the schedule,
    for they also pass while no batch is trained, and what simulations send meanwhile is to be kept.

    One is agreed on in a control round, captured between two steps, written in the background by every rank, and
    committed by rank 0 once all ranks have said that their part is on disk. A failure costs nothing but itself: what
    was committed before stays, and the next one is due as if this one had been taken, but not before a pause that grows
    with each failure in a row. Main thread only.
    """

    def __init__(
        self,
        *,
        ranks: Ranks,
        saver: Saver,
        study: StudyCapture,
        newest: int,
        schedule: Schedule,
        every_s: float,
        progress: Progress,
        at_boundary: Callable[[], bool],
        phases: Phases,
        milestones: "Milestones | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = SaveCounts()
        self.newest = newest
        self._ranks = ranks
        self._saver = saver
        self._study = study
        self._schedule = schedule
        self._every_s = every_s
        self._progress = progress
        self._at_boundary = at_boundary
        self._phases = phases
        self._milestones = milestones
        self._clock = clock
        self._failed = FailedSaves(rank=ranks.rank, clock=clock)
        self._stage = Stage.NONE
        self._checkpoint = newest
        # What this rank has to do in the stage, if anything.
        self._job: Future[Any] | None = None
        self._version: Any = None
        self._taken_at = clock()
        self._taken_batch = self._saved_batch = progress.batches
        schedule.done(progress)
        self._last_s = 0.0

    @property
    def due(self) -> bool:
        """All ranks agreed on a checkpoint, which is to be taken before the next round."""
        return self._stage is Stage.DUE and self._at_boundary()

    @property
    def wait_s(self) -> float:
        return math.inf if self._stage in (Stage.NONE, Stage.DUE) else LOOK_S

    @property
    def warnings(self) -> list[str]:
        """One line per cause of failures on this rank."""
        return self._failed.warnings

    def state(self) -> SaveState:
        """The state of this rank for the next round.

        Raises:
            StaleIncarnation: a newer server has taken over, and this one must not go on.
        """
        is_done = self._job is not None and self._job.done()
        error = self._error
        if isinstance(error, StaleIncarnation):
            raise error
        return SaveState(
            wanted=self._stage is Stage.NONE and self._is_wanted(),
            written=self._stage is Stage.WRITING and is_done and error is None,
            failed=error is not None,
            committed=self._stage is Stage.COMMITTING and is_done and error is None,
        )

    def advance(self, total: SaveState) -> None:
        """Take the next step that the sum of the states of all ranks allows. Collective."""
        match self._stage:
            case Stage.NONE if total.wanted:
                self._stage = Stage.DUE
            case Stage.WRITING if total.written == self._ranks.size:
                self._commit()
            # Not before the last rank is done with its part: the rows of its buffer are still frozen.
            case Stage.WRITING if total.written + total.failed == self._ranks.size:
                self._give_up()
            case Stage.COMMITTING if total.committed:
                self._conclude()
            case Stage.COMMITTING if total.failed:
                self._give_up()

    def state_dict(self) -> dict[str, Any]:
        return self._milestones.schedule.state_dict() if self._milestones else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._milestones:
            self._milestones.schedule.load_state_dict(state)

    def on_round(self, server: Any) -> None:
        """Between two steps: take the checkpoint that all ranks agreed on. Collective."""
        if self.due:
            self.take()

    def take(self) -> None:
        """Capture the study as it is now, and begin to write it. Collective."""
        self._taken_at, self._taken_batch = self._clock(), self._progress.batches
        self._schedule.done(self._progress)
        failpoint("server.before_capture")
        with self._phases.measure("checkpoint"):
            self._checkpoint += 1
            self._version = self._study.version()
            kept = self._milestones.parts(self._ranks.rank) if self._milestones else []
            self._job = self._saver.write(self._checkpoint, [*self._study.capture(), *kept])
        self._stage = Stage.WRITING

    def take_last(self) -> bool:
        """Take a checkpoint and wait for it, outside of training; whether it is committed. Collective.

        Raises:
            PeerFailed: another rank failed.
        """
        self._wait_for_save()
        self.take()
        self._wait_for_save()
        return self.newest == self._checkpoint

    def take_before_validation(self) -> None:
        """Take a checkpoint of the batches that are in none yet, and wait for it. Collective.

        A failure is not tried again here, and one during the pause after a failure is left out. A server that was
        restored has nothing new to save: a validation that always crashes makes no new checkpoints.

        Raises:
            PeerFailed: another rank failed.
        """
        self._wait_for_save()
        is_new = self._progress.batches != self._saved_batch
        if agree(self._ranks, SaveState(wanted=is_new and not self._failed.is_pausing)).wanted:
            self.take()
            self._wait_for_save()

    def _wait_for_save(self) -> None:
        while self._stage in (Stage.WRITING, Stage.COMMITTING):
            if self._job is not None:
                with suppress(TimeoutError):
                    self._job.exception(LOOK_S)
            self.advance(agree(self._ranks, self.state()))

    def _is_wanted(self) -> bool:
        if self._failed.is_pausing:
            return False
        since_s = self._clock() - self._taken_at
        wanted = (
            since_s >= (self._every_s if self.newest else min(self._every_s, FIRST_S))
            or self._schedule.is_due(self._progress)
            or (self._study.has_pressure and since_s >= REST * self._last_s)
        )
        is_milestone = self._milestones is not None and self._milestones.is_due
        return is_milestone or (wanted and self._study.version() != self._version)

    def _commit(self) -> None:
        assert self._job is not None
        gathered = self._ranks.gather(records_to_json(self._job.result()))
        self._stage, self._job = Stage.COMMITTING, None
        failpoint("server.all_written")
        if gathered is not None:
            files = {path: record for of_rank in gathered for path, record in records_from_json(of_rank).items()}
            self._job = self._saver.commit(self._study.manifest(self._checkpoint, files))

    def _conclude(self) -> None:
        failpoint("server.before_conclusion")
        self.newest = self._checkpoint
        self._saved_batch = self._taken_batch
        self.counts.committed += 1
        self.counts.degraded = False
        self._failed.clear(self.newest)
        self._end()
        self._study.committed(self._checkpoint, self._saver.checkpoints.path(self._checkpoint))

    def _give_up(self) -> None:
        self._saver.discard()
        self.counts.failed += 1
        self.counts.degraded = True
        self._failed.note(self._error, newest=self.newest)
        if self._milestones:
            self._milestones.take_back()
        # It is tried again even if nothing new has come.
        self._version = None
        self._end()

    def _end(self) -> None:
        self._last_s = self._clock() - self._taken_at
        self._stage, self._job = Stage.NONE, None

    @property
    def _error(self) -> BaseException | None:
        """Why the job of this rank has failed, if it has."""
        return self._job.exception() if self._job is not None and self._job.done() else None


class Milestones:
    """The checkpoints that stay for ever: the first one after each moment of `schedule`, which also makes it due.

    A file in the checkpoint says so, whatever the settings are later on. In the state within a milestone it is done.
    """

    def __init__(self, schedule: Schedule, progress: Progress) -> None:
        self.schedule = schedule
        self._progress = progress
        self._before: dict[str, Any] | None = None

    @property
    def is_due(self) -> bool:
        return self.schedule.is_due(self._progress)

    def parts(self, rank: int) -> list[PendingFile]:
        """The file that marks the checkpoint being captured, written by rank 0; none if it is no milestone."""
        self._before = None
        if not self.is_due:
            return []
        self._before = self.schedule.state_dict()
        self.schedule.done(self._progress)
        text = f"This checkpoint, after batch {self._progress.batches}, stays for ever.\n".encode()
        return [PendingFile(path=MILESTONE_FILE, write=lambda file: file.write(text))] if rank == 0 else []

    def take_back(self) -> None:
        """The last one failed: if it was to be a milestone, the next one is."""
        if self._before is not None:
            self.schedule.load_state_dict(self._before)
