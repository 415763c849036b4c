"""Whether the simulations of a study can be made to run at all. Pure."""

import math

from stream_server.launcher.entry import Entry
from stream_server.launcher.limits import Limits

NUM_BARREN = 3


class Failures:
    """Counts the failures of a study, and says why it must stop: "" as long as it need not."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_planned = limits.num_simulations
        self._barren_jobs: set[tuple[int, tuple[int, ...]]] = set()

    def planned(self, num: int) -> None:
        """A plan has so many simulations."""
        self.num_planned = max(self.num_planned, num)

    def count_barren(self, it: Entry) -> str:
        """An attempt failed before any time step came. Those that shared a job failed once."""
        self._barren_jobs.add((it.attempt, it.mates))
        if len(self._barren_jobs) < NUM_BARREN:
            return ""
        return f"{NUM_BARREN} attempts in a row failed and no time step ever came"

    def too_many(self, num_given_up: int) -> str:
        """So many simulations failed for good."""
        if self.limits.on_failure == "stop":
            return "a simulation failed for good, and simulation.on_failure is stop"
        if num_given_up > math.floor(self.limits.max_failed * self.num_planned + 1e-9):
            limit = f"simulation.max_failed = {self.limits.max_failed:g}"
            return f"{num_given_up} of {self.num_planned} simulations failed for good, more than {limit}"
        return ""
