"""The end of a study: every rank's account, report.json, and the exit code that all ranks leave with."""

import logging
import resource
import sys
from dataclasses import replace

import msgspec

from stream_server.errors import EXIT_SAVED, ModelNotWritten, NotBalanced, StaleIncarnation, TooManyFailures
from stream_server.failpoints import failpoint
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import RankAccount
from stream_server.server.intake.source import Simulations
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.simulations.design import write_csv
from stream_server.server.study.failure import Failure
from stream_server.server.study.report import FAILED, Outcome, RankReport, build_report, write_report
from stream_server.server.study.set_up import StudyRank
from stream_server.server.study.summary import show_summary
from stream_server.server.user.framework import framework_of
from stream_server.wording import counted

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


def outcome_of_failure(failure: Failure) -> Outcome:
    """The outcome of a study that failed."""
    message = f"rank {failure.rank}, {failure.phase}: {failure.message}"
    return Outcome(exit_code=failure.exit_code, reason=FAILED, message=message)


def close(study: StudyRank, outcome: Outcome) -> int:
    """Gather the accounts of all ranks; rank 0 writes report.json and shows the summary. Collective.

    Returns:
        The exit code: that of `outcome`, unless the account of a study that ended well does not balance.
    """
    study.ranks.abandon_calls()
    gathered = study.ranks.gather(msgspec.to_builtins(_report_of(study), str_keys=True))
    exit_code = 0
    if gathered is not None:
        exit_code = write_and_show(study, outcome, msgspec.convert(gathered, list[RankReport], str_keys=True))
    return int(study.ranks.broadcast(exit_code))


def write_and_show(study: StudyRank, outcome: Outcome, parts: list[RankReport]) -> int:
    """Write report.json and show the summary; gives the exit code. Not collective.

    Without `parts`, just before this rank aborts all, there is no account. A server that a newer start has replaced
    writes nothing: report.json is the newer one's.
    """
    if study.continuation.is_outdated():
        print("a newer start of the server has taken over: this one writes no report", file=sys.stderr, flush=True)
        return StaleIncarnation.exit_code
    simulations = study.source.simulations if study.is_set_up else None
    if simulations is not None and (study.is_online or study.config.offline.write_files):
        outcome = judged(outcome, simulations)
    if study.is_set_up and study.export is not None and study.export.problem and not outcome.exit_code:
        text = f"{study.export.problem}. The last checkpoint has it: make room and run it again"
        outcome = Outcome(exit_code=ModelNotWritten.exit_code, reason=FAILED, message=text)
    report = build_report(outcome, study, parts)
    for warning in report["warnings"]:
        _log.info("warning: %s", warning)
    try:
        if simulations is not None:
            write_csv(study.folder.parameters, simulations.parameters, simulations.origins)
        failpoint("server.before_report")
        write_report(report, study.folder.report)
    except OSError as error:
        # Without it nobody may take the study for finished; the same command closes it once more.
        print(f"there is no report: {error}. Make room and run it again", file=sys.stderr, flush=True)
        report |= {"exit_code": NotBalanced.exit_code, "message": f"there is no report: {error}"}
    # Those of a replay are in the record alone.
    places = study.folder.places(has_held_out=study.is_online)
    show_summary(report, places, hands_over=study.stops.hands_over, is_online=study.is_online)
    return int(report["exit_code"])


def judged(outcome: Outcome, simulations: Simulations) -> Outcome:
    """The outcome, which is a failure where every simulation to train on has failed."""
    states = [end.state for end in simulations.ends.values() if not end.held_out]
    if outcome.exit_code or not states or any(state not in FAILED_PHASES for state in states):
        return outcome
    message = f"no simulation finished: {counted(len(states), 'simulation')} to train on, and all have failed"
    return Outcome(exit_code=TooManyFailures.exit_code, reason=FAILED, message=message)


def _report_of(study: StudyRank) -> RankReport:
    """The part of this rank; of a start that failed in its set-up, none has an account."""
    source, buffer, phases, account = study.source, study.buffer, study.phases, RankAccount(intake={})
    phases.add("receive", source.receive_s)
    slots, peak_kib = buffer.slots, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory_bytes = {"buffer": slots.sample_bytes * slots.num_slots, "peak": peak_kib * 1024}
    if study.is_set_up:
        if study.config.training.prefetch:
            phases.add("prefetch", study.stream.prefetch_s)
        if device := framework_of(study.server).device_bytes():
            memory_bytes["device_peak"] = device["memory/device_peak_bytes"]
        if received := source.account:
            left = buffer.num_never_drawn + source.num_left
            stream = study.stream
            account = replace(received, drawn=stream.num_drawn, dropped=stream.num_dropped, left=left)
    warnings = [*source.warnings, *study.warnings]
    return RankReport(account=account, phases_s=phases.seconds, memory_bytes=memory_bytes, warnings=warnings)
