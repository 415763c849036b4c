"""The end of a study: every rank's account, report.json, and the exit code that all ranks leave with."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from stream_server.config import StudyConfig
from stream_server.errors import NotBalanced, StaleEpoch
from stream_server.failpoints import failpoint
from stream_server.server.account import Learned, RankAccount, SimulationEnd
from stream_server.server.cores import Cores
from stream_server.server.design import write_csv
from stream_server.server.failure import Failure
from stream_server.server.identity import Identity
from stream_server.server.output import OutputFolder
from stream_server.server.ranks import Ranks
from stream_server.server.reception_snapshot import ReceptionAccount
from stream_server.server.report import Outcome, RankReport, StudyReport, build_report, versions, write_report
from stream_server.server.summary import summary
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopReason, StopRequests

if TYPE_CHECKING:
    from stream_server.server.learning import Learning

EXIT_SAVED = 75
FAILED = "failed"


def outcome_of(stops: StopRequests, *, is_saved: bool) -> Outcome:
    """How a training that did not fail has ended; `is_saved`: its last checkpoint is committed."""
    if not is_saved:
        message = "the last checkpoint could not be committed: the logs of the ranks say why"
        return Outcome(exit_code=NotBalanced.exit_code, reason=FAILED, message=message)
    match stops.agreed:
        case None | StopReason.UNEVEN:
            return Outcome(exit_code=0, reason="finished", message=stops.text)
        case StopReason.SAVED:
            return Outcome(exit_code=EXIT_SAVED, reason="saved", message=stops.text or "saved")
        case reason:
            return Outcome(exit_code=0, reason=reason.untrained_reason, message=stops.text)


def rank_report(
    *,
    reception: ReceptionAccount | None,
    num_drawn: int,
    num_left: int,
    phases_s: Mapping[str, float],
    buffer_bytes: int,
    warnings: Sequence[str],
) -> RankReport:
    """What this rank hands to rank 0. `num_drawn` samples were in a batch at least once, `num_left` still wait."""
    account = RankAccount(
        intake={} if reception is None else reception.intake,
        duplicates=0 if reception is None else reception.duplicates,
        refused={} if reception is None else reception.refused,
        drawn=num_drawn,
        withdrawn=0 if reception is None else reception.withdrawn,
        left=num_left,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory_bytes = {"buffer": buffer_bytes, "peak": peak}
    return RankReport(account=account, phases_s=phases_s, memory_bytes=memory_bytes, warnings=warnings)


class Simulations(Protocol):
    """How the simulations fared."""

    num_survived: int
    failures: list[dict[str, object]]

    @property
    def ends(self) -> Mapping[int, SimulationEnd]: ...

    @property
    def parameters(self) -> dict[int, dict[str, float]]: ...

    @property
    def awaited(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """Settles the account of a study. `simulations` are rank 0's; the others only hand in their part.

    A start that failed in its set-up has neither `simulations` nor `learning`. Nothing was received or trained in it,
    and it gives no account of what earlier ones have saved.
    A server that `is_outdated` keeps its account to itself: report.json is the newer one's.
    """

    config: StudyConfig
    ranks: Ranks
    folder: OutputFolder
    identity: Identity
    progress: Progress
    stops: StopRequests
    started_s: float
    is_outdated: Callable[[], bool]
    cores: Cores

    def wall_s(self) -> float:
        """How long the study has run, all its epochs together."""
        return time.monotonic() - self.started_s

    def close(
        self, outcome: Outcome, mine: RankReport, *, simulations: Simulations | None, learning: "Learning | None"
    ) -> int:
        """Gather the parts of all ranks, write report.json and show the summary. Collective.

        Returns:
            The exit code: that of `outcome`, unless the account of a study that ended well does not balance.
        """
        gathered = self.ranks.gather(mine.to_json())
        exit_code = 0
        if gathered is not None:
            parts = [RankReport.from_json(part) for part in gathered]
            exit_code = self._write(outcome, parts, simulations, learning)
        return int(self.ranks.broadcast(exit_code))

    def close_alone(
        self, failure: Failure, mine: RankReport, *, simulations: Simulations | None, learning: "Learning | None"
    ) -> None:
        """Write what this rank knows into report.json, just before it aborts all ranks. Not collective."""
        parts: list[RankReport | None] = [None] * self.ranks.size
        parts[self.ranks.rank] = mine
        self._write(self.outcome_of_failure(failure), parts, simulations, learning)

    def outcome_of_failure(self, failure: Failure) -> Outcome:
        """How a study has ended that failed."""
        message = f"rank {failure.rank}, {failure.phase}: {failure.message}"
        return Outcome(exit_code=failure.exit_code, reason=FAILED, message=message)

    def _write(
        self,
        outcome: Outcome,
        parts: list[RankReport | None] | list[RankReport],
        simulations: Simulations | None,
        learning: "Learning | None",
    ) -> int:
        if self.is_outdated():
            print("a newer start of the server has taken over: this one writes no report", file=sys.stderr, flush=True)
            return StaleEpoch.exit_code
        progress, stopped = self.progress, self.stops.agreed
        study = StudyReport(
            study=self.config.study.name,
            started=self.identity.started,
            wall_s=self.wall_s(),
            restarts=self.identity.epoch - 1,
            training_s=progress.elapsed_s,
            learned=Learned(
                trained=0 if learning is None else progress.samples,
                skipped=0 if learning is None else progress.skipped,
                untrained_reason=outcome.reason if stopped is None else stopped.untrained_reason,
            ),
            batches=progress.batches,
            batches_per_rank=progress.batches_per_rank,
            updates=progress.updates,
            draws=progress.draws,
            lonely_steps=progress.lonely_steps,
            simulations={} if simulations is None else simulations.ends,
            num_survived=0 if simulations is None else simulations.num_survived,
            failures=() if simulations is None else simulations.failures,
            validation=() if learning is None else learning.validation.history,
            best={} if learning is None else learning.validation.best,
            best_models=() if learning is None else learning.best,
            versions=versions(self.ranks.mpi_version),
            cores=self.cores,
            awaited="" if simulations is None else simulations.awaited,
        )
        report = build_report(outcome, study, parts)
        try:
            if simulations is not None:
                write_csv(self.folder.parameters, simulations.parameters)
            failpoint("server.before_report")
            write_report(report, self.folder.report)
        except OSError as error:
            # Without it nobody may take the study for finished; the same command closes it once more.
            print(f"there is no report: {error}. Make room and run it again", file=sys.stderr, flush=True)
            report |= {"exit_code": NotBalanced.exit_code, "message": f"there is no report: {error}"}
        Console(file=sys.stderr).print(summary(report))
        return int(report["exit_code"])
