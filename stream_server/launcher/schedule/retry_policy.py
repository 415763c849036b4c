"""The retry policy: whether a simulation that failed is tried again or given up, or makes the study stop. Pure.

Whose fault the failure of a shared job is, is decided in `shared_jobs.py`. Restarts of the server are decided in
`supervision/server_restart.py`.
"""

import math
from dataclasses import dataclass

from stream_server.launcher.schedule.simulation import ScheduledAttempt, ScheduledSimulation, ScheduledState
from stream_server.messages.launcher_link import Failed, GaveUp, TooMany

MAX_EARLY_FAILURES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleLimits:
    """The rules of the study. `starts_jobs` is False when simulations only attach by themselves.

    Those of a job of `per_job` run side by side, those of a worker, at most `per_worker`, one after another.
    `num_simulations` is what `max_failed` is a share of, if it is below 1; never less than the largest plan.
    """

    starts_jobs: bool = True
    max_running: int = 1
    per_job: int = 1
    per_worker: int = 1
    max_attached: int = 4
    retries: int = 2
    on_failure: str = "give_up"
    max_failed: float = 0.1
    timeout_s: float = 600.0
    num_simulations: int = 0


def most_failed(max_failed: float, num_simulations: int) -> int:
    """Number of simulations that may fail for good; `max_failed` is a share below 1, a number from 1 on."""
    return math.floor(max_failed * num_simulations + 1e-9 if max_failed < 1 else max_failed)


class RetryPolicy:
    """Decides what follows from a failure: another attempt, or the end of the simulation or of the study."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self.limits = limits
        self.num_planned = limits.num_simulations
        self._early_failures: set[tuple[int, tuple[int, ...]]] = set()

    def note_plan(self, num: int) -> None:
        self.num_planned = max(self.num_planned, num)

    def is_exhausted(self, entry: ScheduledSimulation) -> bool:
        """Tell whether a simulation has had all its attempts."""
        return entry.failures > self.limits.retries

    def failed(
        self, entry: ScheduledSimulation, attempt: ScheduledAttempt, *, anything_came: bool, num_given_up: int
    ) -> list[Failed | GaveUp | TooMany]:
        """The newest attempt of a simulation has failed: it waits for the next one, or, when none is left, is given up.

        `num_given_up` others were given up before.
        """
        entry.state = ScheduledState.WAITING
        failure = Failed(simulation=entry.id, attempt=attempt.number, reason=attempt.why_failed, excuse=attempt.excuse)
        if attempt.excuse:
            return [failure]
        entry.failures += 1
        why_stop = "" if anything_came else self._failed_early(attempt)
        if self.is_exhausted(entry):
            return [failure, *self.give_up(entry, attempt, num_given_up + 1, why_stop)]
        return [failure, *_abort(attempt, why_stop)]

    def give_up(
        self, entry: ScheduledSimulation, attempt: ScheduledAttempt, num_given_up: int, why_stop: str = ""
    ) -> list[GaveUp | TooMany]:
        """No attempt is left for a simulation, the `num_given_up`-th one, after this one."""
        entry.state = ScheduledState.GIVEN_UP
        redraw = self.limits.on_failure == "redraw"
        # Before `GaveUp`: afterwards no simulation may be left, and the study would end as finished.
        return [
            *_abort(attempt, why_stop or self._too_many(num_given_up)),
            GaveUp(simulation=entry.id, attempts=attempt.number + 1, reason=attempt.why_failed, redraw=redraw),
        ]

    def _failed_early(self, attempt: ScheduledAttempt) -> str:
        """Return why the study must stop when no simulation can run. A shared job counts as one failure."""
        self._early_failures.add((attempt.number, attempt.members))
        if len(self._early_failures) < MAX_EARLY_FAILURES:
            return ""
        return f"{MAX_EARLY_FAILURES} attempts in a row failed and no time step ever came"

    def _too_many(self, num_given_up: int) -> str:
        """Return why the study must stop now that this many simulations failed for good."""
        if self.limits.on_failure == "stop":
            return "a simulation failed for good, and simulation.on_failure is stop"
        if num_given_up > most_failed(self.limits.max_failed, self.num_planned):
            limit = f"simulation.max_failed = {self.limits.max_failed:g}"
            return f"{num_given_up} of {self.num_planned} simulations failed for good, more than {limit}"
        return ""


def _abort(attempt: ScheduledAttempt, why: str) -> list[TooMany]:
    text = f"{why}: simulation {attempt.simulation} {attempt.why_failed}"
    return [TooMany(text=text, simulation=attempt.simulation, attempt=attempt.number)] if why else []
