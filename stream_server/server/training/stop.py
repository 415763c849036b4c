"""Why a training ends before all samples are trained."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


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
        """What the closing account says of the samples that are left."""
        return ("saved", "early_stop", "max_batches", "max_s", "uneven")[self]

    @property
    def is_regular(self) -> bool:
        """Whether the training has come to the end that could be foreseen, where learning-rate schedules end, too."""
        return self in (StopReason.MAX_BATCHES, StopReason.UNEVEN)


class StopRequests:
    """This rank's wish to stop, and what all ranks agreed on.

    `request` may be called in a signal handler. The first wish is kept, and all are counted.
    """

    def __init__(self) -> None:
        self.pending: StopReason | None = None
        self.num_requests = 0
        self.text = ""
        self.agreed: StopReason | None = None

    def request(self, reason: StopReason, text: str) -> None:
        """Ask all ranks to stop at the next update."""
        self.num_requests += 1
        if self.pending is None:
            self.text = text
            self.pending = reason

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within, SIGINT, SIGTERM and SIGUSR1 ask for a stop; a second SIGINT interrupts at once. Main thread only."""

        def ask(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            self.request(StopReason.SAVED, f"stopped by {name}; run it again to go on")
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        before = {number: signal.signal(number, ask) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
