"""The story of one simulation: what became of its attempts, and why, as the launchers' journal tells it."""

from collections import Counter

from stream_server.analysis.live import ask_simulations
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import status_of
from stream_server.analysis.simulations import simulations_of
from stream_server.analysis.timeline import journal_of
from stream_server.errors import NotRunning, StreamServerError
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import ENDED, History
from stream_server.messages.launcher_link import Attached, Failed, GaveUp
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.wording import counted


def story(run: RunFolder, simulation: int, timeout_s: float) -> list[str]:
    """The state of a simulation, and below it what happened to its attempts, in the order of time.

    Raises:
        NotRunning: there is no such simulation, its journal cannot be read, or a live run did not answer in time.
    """
    try:
        journal = journal_of(run)
    except (OSError, StreamServerError) as error:
        raise NotRunning(f"{run.path}: its journal cannot be read: {error}") from error
    summaries = ask_simulations(run, timeout_s) if status_of(run).is_live else simulations_of(run)
    summary = next((each for each in summaries if each.simulation == simulation), None)
    if summary is None:
        raise NotRunning(f"{run.path} has no simulation {simulation}")
    reason = summary.reason
    if summary.state == SimulationPhase.WAITING:
        reason = ", ".join(f"{num} {state}" for state, num in Counter(other.state for other in summaries).items())
    lines = [f"simulation {simulation} is {summary.state}" + (f": {reason}" if reason else "")]
    history = History()
    for record in journal:
        if line := _event(record, simulation, history):
            lines.append(f"  {line}")
        history = history.after(record)
    return lines


def _event(record: records.JournalRecord, simulation: int, history: History) -> str:
    """A record in words, after the records of `history`; "" if it is not about this simulation."""
    if getattr(record, "simulation", simulation) != simulation:
        return ""
    attempt = history.attempts.get(simulation)
    match record:
        case records.AttemptStarting(attempt=number):
            mates = history.jobs.get(record.job or record.folder)
            last = history.all_attempts.get((simulation, number - 1))
            beside = f", in the job of simulation {mates[0].key[0]}" if mates else ""
            lost = ": a new server lacks time steps of the last one" if last is not None and last.state == ENDED else ""
            return f"attempt {number} starts{beside}{lost}"
        case Attached(attempt=number):
            return f"attempt {number} goes to a client that attached"
        case records.AttemptCancelled(attempt=number, reason=reason, excuse=excuse):
            return f"attempt {number} is cancelled: it {reason}" + (f", for {excuse}" if excuse else "")
        case records.AttemptEnded(attempt=number, reason=reason):
            return f"attempt {number} is over: {reason}"
        case Failed(attempt=number):
            return f"attempt {number} failed: {record.explanation}"
        case GaveUp(attempts=attempts, reason=reason):
            return f"given up after {counted(attempts, 'attempt')}: {reason}"
        case records.PlanTaken(incarnation=number) if attempt is not None and number != history.incarnation:
            return f"attempt {attempt.key[1]} goes on with a new server (incarnation {number})"
        case records.LauncherStarted(resumed=True) if attempt is not None:
            return f"attempt {attempt.key[1]} is taken over by another launcher"
        case records.LauncherStarted() | records.LauncherLeft() if attempt is not None and not history.ended_in_order:
            return f"attempt {attempt.key[1]} is interrupted by the end of its launcher"
    return ""
