"""What the schedule starts with after a launcher was killed. Pure."""

from stream_server.launcher.entry import RESTARTED, Entry, State
from stream_server.launcher.past import Past


def entries_of(past: Past, now: float) -> list[Entry]:
    """The simulations that run, have failed before or were given up."""
    entries = {
        simulation: Entry(
            id=simulation,
            attempt=past.highest.get(simulation, -1),
            failures=failures,
            reason=past.reasons[simulation],
        )
        for simulation, failures in past.failures.items()
    }
    for simulation, reason in past.given_up.items():
        entry = entries.setdefault(simulation, Entry(id=simulation, attempt=past.highest.get(simulation, -1)))
        entry.state, entry.reason = State.GIVEN_UP, reason
    for it in past.attempts.values():
        entry = entries.setdefault(it.simulation, Entry(id=it.simulation))
        entry.state, entry.attempt, entry.has_job = State.RUNNING, it.attempt, it.job is not None
        entry.floor, entry.client = past.highest[it.simulation], it.client
        entry.started = entry.quiet_since = now
        if it.job is not None:
            entry.mates = tuple(mate.simulation for mate in past.in_job(it.job))
        if it.cancelled is not None:
            entry.cancelled, entry.reason, entry.excuse = True, it.cancelled.reason, it.cancelled.excuse
        entry.excuse = entry.excuse or (RESTARTED if it.saw_restart else "")
    return list(entries.values())
