"""What the main thread looks after in every round, beside training."""

import logging
from typing import Any

from stream_server.errors import TooManyFailures
from stream_server.launcher import link
from stream_server.server import events
from stream_server.server.source import Source
from stream_server.server.training.callbacks import Callback, Callbacks
from stream_server.server.training.stop import StopReason, StopRequests

log = logging.getLogger(__name__)


class Watch(Callback):
    """Hands on what the source of the samples tells. Main thread."""

    def __init__(self, source: Source, callbacks: Callbacks, *, stops: StopRequests) -> None:
        self._source = source
        self._callbacks = callbacks
        self._stops = stops

    def on_round(self, server: Any) -> None:
        """Do what is due.

        Raises:
            TooManyFailures: the simulations cannot be made to run.
            RankLost: the launcher cannot be kept alive.
            UserCodeError: a user's callback raised.
        """
        for event in self._source.look():
            self._hand_on(event)

    def _hand_on(self, event: events.Event) -> None:
        match event:
            case events.SimulationFinished(simulation=simulation):
                self._callbacks.on_simulation_finished(simulation)
            case events.ReceptionEnded():
                self._callbacks.on_reception_end()
            case events.StudyFailed(text=text):
                raise TooManyFailures(text)
            case events.FromLauncher(message=link.Leave(reason=reason)):
                self._stops.request(StopReason.SAVED, reason)
            case events.FromLauncher(message=link.Failed() as failed):
                where = f"; its log: {failed.log}" if failed.log else ""
                log.warning(
                    "simulation %d, attempt %d failed: %s%s", failed.simulation, failed.attempt, failed.reason, where
                )
            case events.FromLauncher(message=link.HeldBack(text=text)):
                log.warning("%s", text)
            case _:
                return
