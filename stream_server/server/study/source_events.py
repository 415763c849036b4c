"""Hands on the events of the source of samples: to the callbacks, to the log, or as the end of the study."""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from stream_server.errors import TooManyFailures
from stream_server.machine.screen import tell
from stream_server.messages import launcher_link
from stream_server.server.intake import mailbox
from stream_server.server.progress.stop import StopRequests
from stream_server.server.user.callbacks import Callback, Callbacks

log = logging.getLogger(__name__)


class SourceEvents(Callback):
    """Hands on, in every round, the events since the last one, which `look` gives. Main thread."""

    def __init__(
        self, look: Callable[[], Iterable[mailbox.Event]], callbacks: Callbacks, *, stops: StopRequests
    ) -> None:
        self._look = look
        self._callbacks = callbacks
        self._stops = stops

    def on_round(self, server: Any) -> None:
        """Hand on all events.

        Raises:
            TooManyFailures: the simulations cannot be made to run.
            RankLost: the launcher cannot be kept alive.
            UserCodeError: a user's callback raised.
        """
        for event in self._look():
            self._hand_on(event)

    def _hand_on(self, event: mailbox.Event) -> None:
        match event:
            case mailbox.SimulationFinished(simulation=simulation):
                self._callbacks.tell("on_simulation_finished", simulation)
            case mailbox.ReceptionEnded():
                self._callbacks.tell("on_reception_end")
            case mailbox.SimulationsFailed(text=text):
                raise TooManyFailures(text)
            case mailbox.FromLauncher(message=launcher_link.Leave(reason=reason)) | mailbox.StopAsked(reason=reason):
                self._stops.order(reason)
            case mailbox.FinishAsked(reason=reason):
                # Rank 0 has the order from the operator, and once more from the launcher that follows it.
                if self._stops.text != reason:
                    log.info("%s", reason)
                    tell(reason, sys.stderr)
                self._stops.note(reason)
            case mailbox.FromLauncher(message=launcher_link.Failed() as failed):
                where = f"; its log: {failed.log}" if failed.log else ""
                who = f"simulation {failed.simulation}, attempt {failed.attempt}"
                log.warning("%s failed: %s%s", who, failed.explanation, where)
            case mailbox.FromLauncher(
                message=launcher_link.FailedLater(simulation=simulation, reason=reason, log=path)
            ):
                log.warning("simulation %d failed after its last time step: %s; its log: %s", simulation, reason, path)
            case mailbox.SimulationWarning(text=text) | mailbox.FromLauncher(message=launcher_link.HeldBack(text=text)):
                log.warning("%s", text)
            case mailbox.LauncherSilence(is_over=True):
                log.warning("stream-launcher answers again")
            case mailbox.LauncherSilence():
                log.warning(
                    "stream-launcher does not answer any more: no simulation is started, and none that fails is tried "
                    "again. If it was killed, start it by the same command: it takes this server over"
                )
            case _:
                return
