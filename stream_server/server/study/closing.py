"""The end of a study: every rank's account, report.json, and the exit code that all ranks leave with."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream_server.config import StudyConfig
from stream_server.errors import EXIT_SAVED, ModelNotWritten, NotBalanced, StaleIncarnation, TooManyFailures
from stream_server.failpoints import failpoint
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.checkpoint.continuation import Continuation
from stream_server.server.intake.account import Learned
from stream_server.server.intake.source import Simulations
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run.cores import Cores
from stream_server.server.run.output import OutputFolder
from stream_server.server.run.report import Outcome, RankReport, StudyReport, build_report, versions, write_report
from stream_server.server.simulations.design import write_csv
from stream_server.server.study.failure import Failure
from stream_server.server.study.summary import show_summary
from stream_server.wording import counted

FAILED = "failed"
FAILED_PHASES = (SimulationPhase.GIVEN_UP, SimulationPhase.INVALID)

_log = logging.getLogger(__name__)


def outcome_of(stops: StopRequests, *, is_saved: bool) -> Outcome:
    """The outcome of a training that did not fail; `is_saved`: its last checkpoint is committed."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The results of a study that was set up. `simulations` is None on all ranks but 0.

    `unwritten_model` says why the trained model could not be written, "" if it was.
    """

    simulations: Simulations | None
    validation: Sequence[Mapping[str, Any]] = ()
    best: Mapping[str, Any] = field(default_factory=dict)
    best_models: Sequence[Mapping[str, Any]] = ()
    rollout: Mapping[str, Any] | None = None
    has_changed_nothing: bool = False
    unwritten_model: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """The end of a study: closing account, report and summary. Rank 0 writes them; the others hand in their part.

    A start that failed in its set-up has no `Results`. Nothing was received or trained in it, and it gives no account
    of what earlier ones have saved. A server that a newer start has replaced writes no report: report.json is the newer
    one's. `wall_s` tells how long the study has run, all its incarnations together. `is_online`: it trains while its
    simulations run.
    """

    config: StudyConfig
    ranks: Ranks
    folder: OutputFolder
    continuation: Continuation
    progress: Progress
    stops: StopRequests
    cores: Cores
    is_online: bool
    wall_s: Callable[[], float]

    def close(self, outcome: Outcome, mine: RankReport, results: Results | None) -> int:
        """Gather the parts of all ranks, write report.json and show the summary. Collective.

        Returns:
            The exit code: that of `outcome`, unless the account of a study that ended well does not balance.
        """
        self.ranks.abandon_calls()
        gathered = self.ranks.gather(mine.to_json())
        exit_code = 0
        if gathered is not None:
            parts = [RankReport.from_json(part) for part in gathered]
            exit_code = self._write(outcome, parts, results)
        return int(self.ranks.broadcast(exit_code))

    def close_alone(self, failure: Failure) -> None:
        """Write report.json without an account, just before this rank aborts all. Not collective."""
        self._write(self.outcome_of_failure(failure), [], None)

    def outcome_of_failure(self, failure: Failure) -> Outcome:
        """The outcome of a study that failed."""
        message = f"rank {failure.rank}, {failure.phase}: {failure.message}"
        return Outcome(exit_code=failure.exit_code, reason=FAILED, message=message)

    def _write(self, outcome: Outcome, parts: Sequence[RankReport], results: Results | None) -> int:
        if self.continuation.is_outdated():
            print("a newer start of the server has taken over: this one writes no report", file=sys.stderr, flush=True)
            return StaleIncarnation.exit_code
        simulations = None if results is None else results.simulations
        outcome = self.judged(outcome, simulations)
        if results is not None and results.unwritten_model and not outcome.exit_code:
            text = f"{results.unwritten_model}. The last checkpoint has it: make room and run it again"
            outcome = Outcome(exit_code=ModelNotWritten.exit_code, reason=FAILED, message=text)
        report = build_report(outcome, self._study_report(outcome, results), parts, self.config.num_samples_of)
        for warning in report["warnings"]:
            _log.info("warning: %s", warning)
        try:
            if simulations is not None:
                write_csv(self.folder.parameters, simulations.parameters, simulations.origins)
            failpoint("server.before_report")
            write_report(report, self.folder.report)
        except OSError as error:
            # Without it nobody may take the study for finished; the same command closes it once more.
            print(f"there is no report: {error}. Make room and run it again", file=sys.stderr, flush=True)
            report |= {"exit_code": NotBalanced.exit_code, "message": f"there is no report: {error}"}
        # Those of a replay are in the record alone.
        places = self.folder.places(has_held_out=self.is_online)
        show_summary(report, places, hands_over=self.stops.hands_over, is_online=self.is_online)
        return int(report["exit_code"])

    def judged(self, outcome: Outcome, simulations: Simulations | None) -> Outcome:
        """The outcome, which is a failure where every simulation to train on has failed, but for a replay's."""
        if outcome.exit_code or simulations is None or not (self.is_online or self.config.offline.write_files):
            return outcome
        states = [end.state for end in simulations.ends.values() if not end.held_out]
        if not states or any(state not in FAILED_PHASES for state in states):
            return outcome
        message = f"no simulation finished: {counted(len(states), 'simulation')} to train on, and all have failed"
        return Outcome(exit_code=TooManyFailures.exit_code, reason=FAILED, message=message)

    def _failures(self, outcome: Outcome, simulations: Simulations | None) -> Sequence[Mapping[str, Any]]:
        """The simulations that were given up and, when the study failed, those whose last attempt had failed."""
        if simulations is None:
            return ()
        return [*simulations.failures, *(simulations.failing if outcome.reason == FAILED else [])]

    def _study_report(self, outcome: Outcome, results: Results | None) -> StudyReport:
        progress, stopped, identity = self.progress, self.stops.agreed, self.continuation.identity
        is_set_up, results = results is not None, results or Results(simulations=None)
        simulations = results.simulations
        return StudyReport(
            study=self.config.study.name,
            started=identity.started,
            wall_s=self.wall_s(),
            restarts=identity.incarnation - 1,
            training_s=progress.elapsed_s,
            learned=Learned(
                trained=progress.samples if is_set_up else 0,
                skipped=progress.skipped if is_set_up else 0,
                added=progress.added if is_set_up else 0,
                untrained_reason=outcome.reason if stopped is None else stopped.untrained_reason,
            ),
            batches=progress.batches,
            batches_per_rank=progress.batches_per_rank,
            updates=progress.updates,
            draws=progress.draws,
            lonely_steps=progress.lonely_steps,
            simulations={} if simulations is None else simulations.ends,
            num_survived=0 if simulations is None else simulations.num_survived,
            failures=self._failures(outcome, simulations),
            retried=() if simulations is None else simulations.retried,
            failed_later=() if simulations is None else simulations.failed_later,
            validation=results.validation,
            best=results.best,
            best_models=results.best_models,
            rollout=results.rollout,
            has_changed_nothing=results.has_changed_nothing,
            versions=versions(self.ranks.mpi_version),
            cores=self.cores,
            awaited="" if simulations is None else simulations.awaited,
            security=self.config.network.security,
            writes_files=self.config.offline.write_files,
        )
