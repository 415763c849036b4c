"""The solver that is followed: a process, with a process group of its own."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from stream_server.errors import ConfigError

PR_SET_PDEATHSIG = 1
GRACE_S = 4.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class InterruptedBySignal(BaseException):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        self.number = number


class Solver:
    """A program that runs with our input and output. Main thread only, whose end the solver is told by TERM.

    Raises:
        ConfigError: there is no such program, or it cannot be executed.
    """

    def __init__(self, command: Sequence[str], *, inherited: int) -> None:
        libc = ctypes.CDLL(None)

        def end_with_us() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        try:
            # Only the parent of a process that was killed could tell it.
            self._process = subprocess.Popen(command, process_group=0, pass_fds=(inherited,), preexec_fn=end_with_us)
        except OSError as error:
            raise ConfigError(f"{command[0]!r} cannot be started: {error.strerror}") from error

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, but no longer than that."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    @property
    def status(self) -> int:
        """Its exit status, as a shell gives it: 128 and the number of the signal that has killed it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it and what it has started: by this signal, and after GRACE_S by KILL."""
        if not self.has_ended():
            self._send(number)
            self.wait(GRACE_S)
        self._send(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextmanager
def interruptions() -> Iterator[None]:
    """Within, the first signal that asks this program to end raises `InterruptedBySignal`; later ones are ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise InterruptedBySignal(number)

    before = {each: signal.signal(each, interrupt) for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
