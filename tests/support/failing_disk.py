"""A disk that fails, below the disk layer."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stream_server.storage import disk

CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir", "posix_fadvise", "truncate", "close")
# Whether a call fails, by its name and its number among all those that may, from 1.
Fails = Callable[[str, int], bool]


class FailingOs:
    """Stands in for `os`: of these `calls` those fail with `code` that `fails` says.

    In one `thread` alone, by the beginning of its name. `num_calls` have been made there, `failed` are the names of
    those that failed.
    """

    def __init__(self, fails: Fails, code: int, *, calls: tuple[str, ...] = CALLS, thread: str = "") -> None:
        self.num_calls = 0
        self.failed: list[str] = []
        self._fails = fails
        self._code = code
        self._calls = calls
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._failing(name, found) if name in self._calls else found

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any, **more: Any) -> Any:
            if threading.current_thread().name.startswith(self._thread):
                self.num_calls += 1
                if self._fails(name, self.num_calls):
                    self.failed.append(name)
                    if name == "close":
                        call(*arguments)
                    raise OSError(self._code, os.strerror(self._code))
            return call(*arguments, **more)

        return failing


def from_call(first: int, *, lasting: bool) -> Fails:
    """The `first` call fails, or that one and all that follow."""
    return lambda _, number: number == first or (lasting and number > first)


def in_turn(*names: str) -> Fails:
    """These fail once, one after the other; one with a "+" succeeds."""
    left = list(names)

    def fails(name: str, _: int) -> bool:
        return bool(left) and left[0].removeprefix("+") == name and not left.pop(0).startswith("+")

    return fails


@contextmanager
def failing(fails: Fails, code: int = errno.EIO) -> Iterator[FailingOs]:
    """Let the disk fail while the block lasts."""
    real, stand_in = disk.os, FailingOs(fails, code)
    disk.os = stand_in  # type: ignore[assignment]
    try:
        yield stand_in
    finally:
        disk.os = real
