"""Signals as something a poller can wait for, and exceptions that have ended a thread."""

import os
import signal
import threading
import traceback
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


class ThreadErrors:
    """Hears of each exception that ends a thread of this process while the `with` block lasts.

    `on_error` is called with it in that thread, whose name and traceback are still there.
    """

    def __init__(self, on_error: Callable[[BaseException], object] = lambda error: None) -> None:
        self.first: BaseException | None = None
        self._on_error = on_error

    def __enter__(self) -> Self:
        self._before = threading.excepthook
        threading.excepthook = self._ended
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        threading.excepthook = self._before

    def _ended(self, thread: threading.ExceptHookArgs) -> None:
        if thread.exc_value is not None:
            self.first = self.first or thread.exc_value
            self._on_error(thread.exc_value)


def is_started_by(error: BaseException, package: str) -> bool:
    """Whether the thread that this exception has ended began in code of a package, given by its folder."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((file for file in files if file != threading.__file__), "").startswith(package)
