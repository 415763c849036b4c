"""Requests to stop a training before all samples are trained: reasons, and the signals that ask for it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

from stream_server.machine.forced_exit import FIRST_SIGNAL, UrgentSignals, stop_signals


class StopReason(IntEnum):
    """Reasons to stop; when ranks ask for several at once, the first one counts.

    After SAVED the study is not over: it goes on when it is started again.
    """

    SAVED = 0
    EARLY_STOP = 1
    MAX_BATCHES = 2
    MAX_S = 3
    UNEVEN = 4

    @property
    def untrained_reason(self) -> str:
        """The reason that the closing account gives for the samples that are left."""
        return self.name.lower()

    @property
    def is_regular(self) -> bool:
        """True at the end that could be foreseen, where learning-rate schedules end, too."""
        return self in (StopReason.MAX_BATCHES, StopReason.UNEVEN)


class Interrupted(BaseException):
    """A signal ended the set-up of a study. Users' code that handles `Exception` lets it pass."""


class StopRequests:
    """This rank's request to stop, and the reason that all ranks agreed on.

    `request` may be called in a signal handler. The first request is kept, and all are counted. A stop
    `was_ordered` by the user, for the whole study, or is that of this server's job alone; rank 0 knows. `is_followed`
    is that of `Start`. While the study is `in_set_up`, which has no control rounds, a signal interrupts the main
    thread.
    """

    def __init__(self, *, is_followed: bool = False) -> None:
        self.is_followed = is_followed
        self.in_set_up = False
        self.pending: StopReason | None = None
        self.num_requests = 0
        self.text = ""
        self.agreed: StopReason | None = None
        self.was_ordered = False

    @property
    def hands_over(self) -> bool:
        """The study goes on in another server, which nobody need start. Rank 0."""
        return self.is_followed and self.agreed is StopReason.SAVED and not self.was_ordered

    def order(self, text: str) -> None:
        """The user asks for the stop."""
        self.was_ordered = True
        self.request(StopReason.SAVED, text)

    def request(self, reason: StopReason, text: str) -> None:
        """Ask all ranks to stop at the next update."""
        self.num_requests += 1
        if self.pending is None:
            self.text = text
            self.pending = reason

    def note(self, text: str) -> None:
        """Say in the report why a study that trains all it gets ends before time."""
        if self.pending is None:
            self.text = text

    @contextmanager
    def on_signals(
        self, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = lambda text: None
    ) -> Iterator[None]:
        """Within, the `stop_signals` ask for a stop; a second SIGINT or SIGTERM interrupts at once.

        Main thread only. `say` tells the user what the first one does, in the handler.

        Raises:
            Interrupted: the first signal came in the set-up.
            KeyboardInterrupt: it was the second.
        """
        urgent = UrgentSignals()

        def ask(number: int, frame: FrameType | None) -> None:
            name, is_first = signal.Signals(number).name, self.pending is not StopReason.SAVED
            num_before = urgent.num
            if urgent.count(number, clock()) > max(num_before, 1):
                raise KeyboardInterrupt(f"ended by a second {name}")
            self.request(StopReason.SAVED, f"stopped by {name}")
            if self.in_set_up and is_first:
                raise Interrupted(f"stopped by {name} during the set-up; run it again to go on")
            if is_first:
                say(f"stopped by {name}: {FIRST_SIGNAL}")

        before = {number: signal.signal(number, ask) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
