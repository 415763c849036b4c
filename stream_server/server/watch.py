"""What the main thread looks after in every round, beside training."""

import logging
from collections.abc import Callable
from queue import Empty

from stream_server.errors import RankLost, TooManyFailures
from stream_server.launcher import link
from stream_server.server import events
from stream_server.server.launcher_process import LauncherProcess
from stream_server.server.receiver import Receiver
from stream_server.server.training.callbacks import Callbacks
from stream_server.server.training.display import Display, Status

log = logging.getLogger(__name__)


class Watch:
    """Hands on what the receiver tells, notices a launcher that died, and keeps the display fresh. Main thread.

    `launcher` and `display` are rank 0's.
    """

    def __init__(
        self,
        receiver: Receiver,
        callbacks: Callbacks,
        *,
        launcher: LauncherProcess | None,
        display: Display | None,
        status: Callable[[], Status],
    ) -> None:
        self._receiver = receiver
        self._callbacks = callbacks
        self._launcher = launcher
        self._display = display
        self._status = status

    def look(self) -> None:
        """Do what is due.

        Raises:
            TooManyFailures: the simulations cannot be made to run.
            RankLost: the launcher ended although nobody told it to.
            UserCodeError: a user's callback raised.
        """
        for event in self._events():
            self._hand_on(event)
        if self._launcher is not None and self._launcher.exit_code is not None:
            raise RankLost(
                f"the launcher ended with exit code {self._launcher.exit_code}; logs/launcher.log in the output folder "
                "says why"
            )
        if self._display is not None:
            self._display.update(self._status)

    def _events(self) -> list[events.Event]:
        found: list[events.Event] = []
        while True:
            try:
                found.append(self._receiver.events.get_nowait())
            except Empty:
                return found

    def _hand_on(self, event: events.Event) -> None:
        match event:
            case events.SimulationFinished(simulation=simulation):
                self._callbacks.on_simulation_finished(simulation)
            case events.ReceptionEnded():
                self._callbacks.on_reception_end()
            case events.StudyFailed(text=text):
                raise TooManyFailures(text)
            case events.FromLauncher(message=link.Failed() as failed):
                where = f"; its log: {failed.log}" if failed.log else ""
                log.warning(
                    "simulation %d, attempt %d failed: %s%s", failed.simulation, failed.attempt, failed.reason, where
                )
            case _:
                return
