"""What one server rank does when rank 0 tells how the simulations fare. Receiver thread."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stream_server.failpoints import failpoint
from stream_server.server import events, notices
from stream_server.server.access import Access
from stream_server.server.clients import Clients
from stream_server.server.intake import Intake
from stream_server.server.tracker import Tracker
from stream_server.server.validation_store import ValidationStore


class Follower:
    """Applies notices to this rank, rank 0 not excepted.

    `parameters` are filled with those of the simulations that have begun, in the order of study.json. `is_final`:
    every simulation has ended, and no other will come.
    """

    def __init__(
        self,
        *,
        tracker: Tracker,
        clients: Clients,
        intake: Intake,
        validation: ValidationStore,
        access: Access | None,
        parameters: dict[int, npt.NDArray[np.float64]],
        tell_main: Callable[[events.Event], None],
    ) -> None:
        self.tracker = tracker
        self.clients = clients
        self.intake = intake
        self.validation = validation
        self.access = access
        self.parameters = parameters
        self.tell_main = tell_main
        self.is_final = False

    def apply(self, notice: notices.Notice) -> None:
        """Do what a notice asks for."""
        match notice:
            case notices.Attempt():
                self._begin(notice)
            case notices.Over():
                self.tracker.over(notice.simulation, notice.attempt)
            case notices.Terminal():
                self._conclude(notice)
            case notices.Final():
                self.is_final = True
            case notices.Stop():
                self.clients.stop(notice.reason)

    def _begin(self, notice: notices.Attempt) -> None:
        failpoint("receiver.before_attempt")
        self.clients.leave(notice.simulation)
        self.tracker.begin(notice.simulation, notice.attempt, goes_on=notice.goes_on)
        self.parameters[notice.simulation] = np.array(list(notice.parameters.values()), np.float64)
        if self.access is not None:
            self.access.allow(notice.simulation, notice.attempt, notice.key)

    def _conclude(self, notice: notices.Terminal) -> None:
        failpoint("receiver.before_terminal")
        self.tracker.finish(notice.simulation, notice.state)
        if notice.state == "finished":
            if notice.simulation in self.validation:
                self.validation.complete(notice.simulation)
            if self.intake.recorder is not None:
                self.intake.recorder.finish(notice.simulation)
            self.tell_main(events.SimulationFinished(simulation=notice.simulation))
        elif notice.state == "invalid":
            self.intake.withdraw(notice.simulation)
        if self.access is not None and notice.state != "finished":
            self.access.forget(notice.simulation)
        self.clients.leave(notice.simulation)
