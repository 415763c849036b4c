"""The user's program that an adapter starts, and the signals that end both."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

from stream_server.errors import ConfigError

PR_SET_PDEATHSIG = 1
# Less than the launcher leaves us.
GRACE_S = 4.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class InterruptedBySignal(BaseException):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        self.number = number


class Interruptions:
    """Within, the first signal that asks this program to end raises `InterruptedBySignal`; later ones are ignored.

    Main thread only.
    """

    def __init__(self) -> None:
        self._is_held_back = False
        self._held_back: int | None = None

    def __enter__(self) -> Self:
        listening = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        self._before = {each: signal.signal(each, self._interrupt) for each in listening}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """What comes within raises at the end of the block. A mask would not do: it is that of one thread alone."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
        if self._held_back is not None:
            self._interrupt(self._held_back)

    def _interrupt(self, number: int, _: FrameType | None = None) -> None:
        if self._is_held_back:
            self._held_back = number
            return
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        raise InterruptedBySignal(number)


class Program:
    """A program that runs within a `with` block, in a process group of its own, with our input and output.

    What breaks the block off ends the group: by TERM, or the signal that we were sent, and after GRACE_S by KILL. If we
    are killed, the kernel sends TERM to the program. Without a command somebody else has started it. Main thread only,
    whose end counts as ours.

    Raises:
        ConfigError: there is no such program, or it cannot be executed.
    """

    def __init__(self, command: Sequence[str], interruptions: Interruptions, *, inherited: Sequence[int] = ()) -> None:
        self.command = list(command)
        self._interruptions = interruptions
        self._inherited = inherited
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self.command:
            try:
                # A program that was begun but is not known yet would go on.
                with self._interruptions.held_back():
                    self._start()
            except InterruptedBySignal as interrupted:
                self.end(interrupted.number)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None or not self.has_ended:
            self.end(error.number if isinstance(error, InterruptedBySignal) else signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self, limit_s: float | None = None) -> int | None:
        """The exit code at the end of the program, as a shell tells it; None if it still runs after `limit_s`.

        Of one that somebody else has started it is 0.
        """
        if self._process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(limit_s)
            return code if code >= 0 else 128 - code
        return None

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it and what it has started: by this signal, and after GRACE_S by KILL."""
        if self._process is None:
            return
        with self._interruptions.held_back():
            if not self.has_ended:
                self._send(number)
                self.wait(GRACE_S)
            self._send(signal.SIGKILL)
            self._process.wait()

    def _start(self) -> None:
        libc = ctypes.CDLL(None)

        def end_with_us() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        try:
            # Only the parent of a process that was killed could tell it.
            self._process = subprocess.Popen(
                self.command, process_group=0, pass_fds=self._inherited, preexec_fn=end_with_us
            )
        except OSError as error:
            raise ConfigError(f"{self.command[0]!r} cannot be started: {error.strerror}") from error

    def _send(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
