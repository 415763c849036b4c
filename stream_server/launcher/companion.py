"""The launcher of a server that was started by hand: a child of rank 0, for the simulations alone."""

import logging
import os
import signal
import time

from stream_server.launcher.ensemble import Ensemble
from stream_server.launcher.forced_exit import UrgentSignals
from stream_server.launcher.signals import Signals
from stream_server.launcher.sockets import Link

log = logging.getLogger(__name__)


class Companion:
    """Runs the simulations until rank 0 says stop or is gone, or a signal comes. Main thread only.

    A second INT or TERM gives the jobs no grace any more: they are left to be killed.

    `lifeline` is the read end of a pipe that rank 0 holds open: its end means that rank 0 is gone, and makes us
    `orphaned`.
    """

    def __init__(self, ensemble: Ensemble, link: Link, signals: Signals, lifeline: int) -> None:
        self.ensemble = ensemble
        self.link = link
        self.signals = signals
        self.lifeline = lifeline
        self.orphaned = False
        self._urgent = UrgentSignals()

    def run(self) -> None:
        """Serve until told to leave and every job has ended."""
        self.link.watch(self.lifeline, self.signals.readable)
        while not self.ensemble.has_left and self._urgent.num < 2:
            self._wait()
            self.ensemble.turn()

    def _wait(self) -> None:
        ready = self.link.wait(self.ensemble.wake_at - time.monotonic())
        if self.lifeline in ready and not os.read(self.lifeline, 4096):
            self.link.ignore(self.lifeline)
            self.orphaned = True
            self.ensemble.leave("rank 0 of the server is gone")
        if self.signals.readable in ready:
            came = self.signals.take()
            if signal.SIGCHLD in came:
                self.ensemble.look_soon()
            for number in came - {signal.SIGCHLD}:
                self._urgent.count(number, time.monotonic())
                self.ensemble.leave(f"got {number.name}")
