"""The stop of the simulations, once all ranks have agreed that the training is over.

However the training ended (all was trained, early stopping, a limit, a signal), the reason is in
`StopRequests.agreed`. From there it takes this way:

1. `SimulationStop.run` posts `StopSimulations` to rank 0's receiver thread.
2. `Roster.stop` passes it on to the launcher, closes the handshake, and tells all ranks, whose dispatchers answer every
   client with `Stop`.
3. `SimulationSchedule.stop` (`launcher/schedule/schedule.py`) starts nothing more, and cancels after the grace what
   still runs.

The simulations are told nothing if this server leaves after a checkpoint and another one follows
(`StopRequests.hands_over`), as when the time of its job is over: they wait for that one, as they do after a crash.

Why: docs/decisions/0065-early-stop-of-a-simulation.md
"""

import logging
import time
from queue import Empty

import numpy as np

from stream_server.messages import launcher_link
from stream_server.server.intake import mailbox
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.reception.receiver import Receiver
from stream_server.server.simulations.launcher_process import LauncherProcess

STOP_GRACE_S = 10.0
LEAVE_S = 20.0
WAIT_SLICE_S = 0.2
PATIENCE_S = 3.0

log = logging.getLogger(__name__)


class SimulationStop:
    """Ends the simulations of a study, on all ranks together; main thread.

    `launcher` is the process that rank 0 has started, None if the launcher has started the server. All ranks keep their
    sockets open until rank 0 has seen the last job end.
    """

    def __init__(self, ranks: Ranks, receiver: Receiver, launcher: LauncherProcess | None) -> None:
        self.ranks = ranks
        self.receiver = receiver
        self.launcher = launcher
        self._is_first = ranks.rank == 0

    def run(self, stops: StopRequests, *, timeout_s: float) -> None:
        """Tell the simulations that nothing more is wanted, and wait until their jobs have ended. Collective.

        They have a short grace to end by themselves, or `timeout_s` if all that was wanted of them is there.
        """
        # The simulations wait for the next server where there is one.
        if not self.ranks.broadcast(stops.hands_over):
            grace_s = timeout_s if stops.agreed is None else STOP_GRACE_S
            if self._is_first:
                reason = stops.text or "the study has ended"
                self.receiver.post(launcher_link.StopSimulations(reason=reason, grace_s=grace_s))
            self._wait_for_jobs(stops, grace_s + LEAVE_S)
        if self._is_first:
            self.receiver.post(launcher_link.Leaving())
        self.ranks.barrier()

    def _wait_for_jobs(self, stops: StopRequests, timeout_s: float) -> None:
        """Wait until rank 0 sees the last job end; a signal that it gets meanwhile ends the waiting, and so the jobs.

        The ranks meet all the time, however long that takes.
        """
        was_asked = stops.num_requests
        start = time.monotonic()
        told = False
        is_over = False
        while not is_over:
            waited_s = time.monotonic() - start
            sees_end = self._is_first and (
                self._jobs_have_ended() or stops.num_requests != was_asked or waited_s > timeout_s
            )
            if waited_s > PATIENCE_S and self._is_first and not told:
                told = True
                log.warning("%s: waiting for them to end (Ctrl-C ends them)", still_running(stops))
            is_over = self.ranks.all_reduce(np.array([float(sees_end)]))[0] > 0

    def _jobs_have_ended(self) -> bool:
        if self.launcher is not None:
            return self.launcher.wait(WAIT_SLICE_S)
        try:
            event = self.receiver.events.get(timeout=WAIT_SLICE_S)
        except Empty:
            return False
        return isinstance(event, mailbox.FromLauncher) and isinstance(event.message, launcher_link.LauncherDone)


def still_running(stops: StopRequests) -> str:
    """Say why nothing more is trained although simulations still run."""
    if stops.agreed in (None, StopReason.UNEVEN):
        return "all is trained, but simulations still run"
    return f"the training has stopped ({stops.text}), but simulations still run"
