"""The story of one simulation: what became of each attempt, and why, as the launchers' journal tells it."""

from collections import Counter

from stream_server.analysis.attempts import journal_of
from stream_server.analysis.live import ask_simulations
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import status_of
from stream_server.analysis.simulations import SimulationSummary, simulations_of
from stream_server.errors import NotRunning
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.messages.launcher_link import Attached, Failed, GaveUp
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.wording import counted


def story(run: RunFolder, simulation: int, timeout_s: float) -> list[str]:
    """The state of a simulation, and below it what happened to its attempts, in the order of time.

    Raises:
        NotRunning: there is no such simulation, or a live run did not answer in time.
    """
    found = ask_simulations(run, timeout_s) if status_of(run).is_live else simulations_of(run)
    it = next((it for it in found if it.simulation == simulation), None)
    if it is None:
        raise NotRunning(f"{run.path} has no simulation {simulation}")
    return [f"simulation {simulation} is {_state(it, found)}", *(f"  {line}" for line in events_of(run, simulation))]


def events_of(run: RunFolder, simulation: int) -> list[str]:
    """What the journal has of the attempts of a simulation. New servers are left out after the last of these."""
    history, told, num = History(), list[str](), 0
    for record in journal_of(run):
        it = history.attempts.get(simulation)
        if isinstance(record, records.PlanTaken):
            if it is not None and record.incarnation != history.incarnation:
                told.append(f"attempt {it.attempt.number} goes on with a new server (incarnation {record.incarnation})")
                num = len(told)
            elif it is None and simulation in history.simulations:
                told.append(f"a new server comes (incarnation {record.incarnation}): it goes on from its checkpoint")
        elif line := _event(record, simulation, history):
            told.append(line)
            num = len(told)
        history = history.after(record)
    return told[:num]


def _event(record: records.JournalRecord, simulation: int, history: History) -> str:
    """One record in words, "" if it tells nothing of this simulation."""
    if getattr(record, "simulation", simulation) != simulation:
        return ""
    it = history.attempts.get(simulation)
    match record:
        case records.AttemptStarting(attempt=number):
            mates = history.jobs.get(record.job or record.folder)
            return f"attempt {number} starts" + (f", in the job of simulation {mates[0].key[0]}" if mates else "")
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
        case records.LauncherStarted(resumed=True) if it is not None:
            return f"attempt {it.attempt.number} is taken over by another launcher"
        case records.LauncherStarted() | records.LauncherLeft() if it is not None:
            return f"attempt {it.attempt.number} is interrupted by the end of its launcher"
    return ""


def _state(it: SimulationSummary, found: list[SimulationSummary]) -> str:
    """The state of a simulation, and what it waits for."""
    state = it.state.replace("_", " ")
    if it.state != SimulationPhase.WAITING:
        return f"{state}: {it.reason}" if it.reason else state
    others = Counter(other.state for other in found)
    return f"{state}: {', '.join(f'{num} {of}' for of, num in others.items())}"
