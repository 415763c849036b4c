"""Signals as something a poller can wait for."""

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Signals:
    """Collects these signals of this process; `readable` is a file descriptor that shows when one came.

    Nothing else happens on such a signal, so that none interrupts what is half done. Main thread only.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self._before: dict[signal.Signals, SignalHandler] = {}

    def __enter__(self) -> Self:
        self.readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        for number in self.numbers:
            self._before[number] = signal.signal(number, lambda _number, _frame: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.readable)
        os.close(self._writable)

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last call."""
        try:
            return {signal.Signals(number) for number in os.read(self.readable, 4096)}
        except BlockingIOError:
            return set()
