"""Signals as something a poller can wait for."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from stream_server.machine.forced_exit import ForcedExit

SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Signals:
    """Collects these signals of this process; `readable` is a file descriptor that shows when one came.

    Nothing else happens on such a signal, so that none interrupts what is half done; but a process that does not end
    after the second INT or TERM is ended. Main thread only.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self._before: dict[signal.Signals, SignalHandler] = {}
        self._forced_exit = ForcedExit(self._pass_on)

    def __enter__(self) -> Self:
        self.readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._forced_exit.__enter__()
        for number in self.numbers:
            self._before[number] = signal.signal(number, lambda _number, _frame: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._forced_exit.__exit__(kind, error, traceback)
        os.close(self.readable)
        os.close(self._writable)

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last call."""
        try:
            return {signal.Signals(number) for number in os.read(self.readable, 4096)}
        except BlockingIOError:
            return set()

    def _pass_on(self, number: int) -> None:
        with suppress(BlockingIOError):
            os.write(self._writable, bytes([number]))
