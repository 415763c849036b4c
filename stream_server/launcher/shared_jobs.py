"""What the simulations in one job mean to each other. Pure."""

from collections.abc import Mapping

from stream_server.launcher.entry import Entry
from stream_server.launcher.verdict import decide


class SharedJobs:
    """The jobs of several simulations, which end only when all of them have. One alone is a job of one member."""

    def __init__(self, simulations: Mapping[int, Entry]) -> None:
        self._simulations = simulations

    def members(self, it: Entry) -> list[Entry]:
        """Those in the job of this one, itself first."""
        return [it, *self._mates(it)]

    def waits(self, it: Entry) -> bool:
        """Nothing more is to come of this one, and its job goes on for another."""
        return it.is_spent and not all(mate.is_spent for mate in self._mates(it))

    def give_time_to_end(self, it: Entry, now: float) -> None:
        """This may be the last one for which its job ran: from now on that has the timeout to end."""
        it.quiet_since = now
        for mate in self._mates(it):
            mate.quiet_since = now if mate.is_spent else mate.quiet_since

    def cancel(self, it: Entry) -> None:
        """The job of this one is cancelled, since its clock has run out."""
        members = self.members(it)
        decide(it, members)
        for each in members:
            each.cancelled = True

    def _mates(self, it: Entry) -> list[Entry]:
        known = (self._simulations.get(simulation) for simulation in it.mates)
        return [mate for mate in known if mate and mate is not it and mate.has_job and it.id in mate.mates]
