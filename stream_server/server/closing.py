"""The end of a study: every rank's account, report.json, and the exit code that all ranks leave with."""

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from stream_server.config import StudyConfig
from stream_server.server.account import Learned, RankAccount, SimulationEnd
from stream_server.server.design import write_csv
from stream_server.server.entry import State
from stream_server.server.failure import Failure
from stream_server.server.identity import Identity
from stream_server.server.output import OutputFolder
from stream_server.server.ranks import Ranks
from stream_server.server.receiver import ReceptionAccount
from stream_server.server.report import Outcome, RankReport, StudyReport, build_report, versions, write_report
from stream_server.server.roster import Roster
from stream_server.server.summary import summary
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopReason, StopRequests
from stream_server.server.training.validation import Validation

EXIT_STOPPED = 7
FAILED = "failed"


def outcome_of(stops: StopRequests) -> Outcome:
    """How a training that did not fail has ended."""
    match stops.agreed:
        case None | StopReason.UNEVEN:
            return Outcome(exit_code=0, reason="finished", message=stops.text)
        case StopReason.SIGNAL:
            return Outcome(exit_code=EXIT_STOPPED, reason=FAILED, message=stops.text or "stopped by a signal")
        case reason:
            return Outcome(exit_code=0, reason=reason.untrained_reason, message=stops.text)


def rank_report(
    *,
    reception: ReceptionAccount | None,
    num_drawn: int,
    num_left: int,
    phases_s: Mapping[str, float],
    buffer_bytes: int,
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
    return RankReport(account=account, phases_s=phases_s, memory_bytes={"buffer": buffer_bytes, "peak": peak})


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """Settles the account of a study. `roster` is rank 0's; the others only hand in their part."""

    config: StudyConfig
    ranks: Ranks
    folder: OutputFolder
    identity: Identity
    progress: Progress
    stops: StopRequests
    started_s: float

    def close(self, outcome: Outcome, mine: RankReport, *, roster: Roster | None, validation: Validation | None) -> int:
        """Gather the parts of all ranks, write report.json and show the summary. Collective.

        Returns:
            The exit code: that of `outcome`, unless the account of a study that ended well does not balance.
        """
        gathered = self.ranks.gather(mine.to_json())
        exit_code = 0
        if gathered is not None:
            parts = [RankReport.from_json(part) for part in gathered]
            exit_code = self._write(outcome, parts, roster, validation)
        return int(self.ranks.broadcast(exit_code))

    def close_alone(
        self, failure: Failure, mine: RankReport, *, roster: Roster | None, validation: Validation | None
    ) -> None:
        """Write what this rank knows into report.json, just before it aborts all ranks. Not collective."""
        parts: list[RankReport | None] = [None] * self.ranks.size
        parts[self.ranks.rank] = mine
        self._write(self.outcome_of_failure(failure), parts, roster, validation)

    def outcome_of_failure(self, failure: Failure) -> Outcome:
        """How a study has ended that failed."""
        message = f"rank {failure.rank}, {failure.phase}: {failure.message}"
        return Outcome(exit_code=failure.exit_code, reason=FAILED, message=message)

    def _write(
        self,
        outcome: Outcome,
        parts: list[RankReport | None] | list[RankReport],
        roster: Roster | None,
        validation: Validation | None,
    ) -> int:
        progress, stopped = self.progress, self.stops.agreed
        study = StudyReport(
            study=self.config.study.name,
            started=self.identity.started,
            wall_s=time.monotonic() - self.started_s,
            training_s=progress.elapsed_s,
            learned=Learned(
                trained=progress.samples,
                skipped=progress.skipped,
                untrained_reason=outcome.reason if stopped is None else stopped.untrained_reason,
            ),
            batches=progress.batches,
            batches_per_rank=progress.batches_per_rank,
            updates=progress.updates,
            draws=progress.draws,
            lonely_steps=progress.lonely_steps,
            simulations={} if roster is None else self._simulations(roster),
            failures=() if roster is None else roster.failures,
            validation=() if validation is None else validation.history,
            best={} if validation is None else validation.best,
            versions=versions(self.ranks.mpi_version),
        )
        if roster is not None:
            write_csv(self.folder.parameters, roster.parameters)
        report = build_report(outcome, study, parts)
        write_report(report, self.folder.report)
        Console(file=sys.stderr).print(summary(report))
        return int(report["exit_code"])

    def _simulations(self, roster: Roster) -> dict[int, SimulationEnd]:
        steps, num_held_out = self.config.study.time_steps, self.config.validation.simulations
        return {
            simulation: SimulationEnd(
                state=entry.state.value,
                num_steps=roster.num_steps(simulation) if steps is None else steps.num,
                num_sent=roster.num_steps(simulation) if entry.state is State.FINISHED else None,
                reason=entry.reason,
                held_out=simulation < num_held_out,
            )
            for simulation, entry in roster.entries.items()
        }
