"""What becomes of the attempts, told to rank 0 and put on record."""

import logging
from pathlib import Path

from stream_server.launcher import link, records
from stream_server.launcher.actions import Decline, Fail, Give, GiveUp, StopStudy
from stream_server.launcher.attempts import Attempts
from stream_server.launcher.blame import AttemptEnd
from stream_server.launcher.journal import Journal
from stream_server.launcher.log_end import log_end
from stream_server.launcher.sockets import Link

log = logging.getLogger(__name__)


class Reports:
    """Passes on what the schedule has decided and nobody but the server needs to act on. Main thread only."""

    def __init__(self, attempts: Attempts, server: Link, journal: Journal) -> None:
        self.attempts = attempts
        self.server = server
        self.journal = journal
        self._logs: dict[tuple[int, int], Path] = {}
        self._given: dict[int, int] = {}

    def given(self, simulation: int, attempt: int) -> None:
        """A client that nobody started runs this attempt."""
        self._given[simulation] = attempt

    def job_ended(self, ended: AttemptEnd) -> None:
        """The job of an attempt is over, whatever that means for the simulation."""
        log.info("simulation %d, attempt %d %s", ended.simulation, ended.attempt, ended.reason)
        self._logs[ended.simulation, ended.attempt] = ended.log

    def attempt_ended(self, simulation: int, attempt: int, reason: str, *, counted: bool = False) -> None:
        """Nothing of an attempt is to be waited for any more."""
        self.journal.note(records.AttemptEnded(simulation=simulation, attempt=attempt, counted=counted, reason=reason))

    def let_go(self, simulation: int, reason: str) -> None:
        """A simulation that a client brought to its end by itself has no job whose end could be waited for."""
        attempt = self._given.pop(simulation, None)
        if attempt is not None:
            self.attempt_ended(simulation, attempt, reason)

    def tell(self, action: Fail | GiveUp | Give | Decline | StopStudy) -> None:
        """Pass a decision on."""
        match action:
            case Fail(simulation=simulation, attempt=attempt, reason=reason, excuse=excuse):
                reason = f"{reason} (not counted against it, for {excuse})" if excuse else reason
                log.warning("simulation %d, attempt %d failed: %s", simulation, attempt, reason)
                self._given.pop(simulation, None)
                self.attempt_ended(simulation, attempt, reason, counted=not excuse)
                path = self._log_path(simulation, attempt)
                self.server.send(link.Failed(simulation=simulation, attempt=attempt, reason=reason, log=path))
            case GiveUp(simulation=simulation, attempts=attempts, reason=reason, redraw=redraw):
                log.warning("simulation %d is given up after %d attempts: %s", simulation, attempts, reason)
                self.journal.note(records.GivenUp(simulation=simulation, reason=reason))
                path = self._log_path(simulation, attempts - 1)
                self.server.send(
                    link.GaveUp(simulation=simulation, attempts=attempts, reason=reason, log=path, redraw=redraw)
                )
            case Give(token=token, simulation=simulation, attempt=attempt, client=client):
                log.info("simulation %d, attempt %d goes to a client that attached", simulation, attempt)
                if self._given.get(simulation) != attempt:
                    self.given(simulation, attempt)
                    self.journal.note(records.AttemptGiven(simulation=simulation, attempt=attempt, client=client))
                self.server.send(link.Attached(token=token, simulation=simulation, attempt=attempt))
            case Decline(token=token, text=text, busy=busy):
                log.info("a client that attached is declined: %s", text)
                self.server.send(link.NoneLeft(token=token, text=text, busy=busy))
            case StopStudy(text=text, simulation=simulation, attempt=attempt):
                log.error("the study stops: %s", text)
                output = self._log(simulation, attempt)
                end = log_end(output)
                self.server.send(link.TooMany(text=f"{text}\nend of {output}:\n{end}" if end else text))

    def _log_path(self, simulation: int, attempt: int) -> str:
        path = self._log(simulation, attempt)
        return str(path) if path.exists() else ""

    def _log(self, simulation: int, attempt: int) -> Path:
        return self._logs.get((simulation, attempt), self.attempts.log(simulation, attempt))
