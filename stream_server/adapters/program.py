"""The user's program that an adapter starts, and watches while it reads what the program writes."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from stream_server.errors import ConfigError

GRACE_S = 10.0


class Program:
    """A program that runs within a `with` block; without a command somebody else has started it.

    Whatever ends the block ends the program: TERM, and KILL after ten seconds. INT and TERM to the adapter end the
    block. Main thread only.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_starting = True
        self._asked_to_end = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._leave) for number in (signal.SIGINT, signal.SIGTERM)}
        if self.command:
            try:
                self._process = subprocess.Popen(self.command)
            except OSError as error:
                raise ConfigError(f"{self.command[0]!r} cannot be started: {error.strerror}") from error
        self._is_starting = False
        if self._asked_to_end:
            self.__exit__(None, None, None)
            sys.exit(self._asked_to_end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            if self.wait(GRACE_S) is None:
                self._process.kill()
                self._process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

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

    def _leave(self, number: int, _: FrameType | None) -> None:
        self._asked_to_end = 128 + number
        # A program that was begun but is not known yet would go on.
        if not self._is_starting:
            sys.exit(self._asked_to_end)
