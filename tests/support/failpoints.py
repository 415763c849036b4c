"""What happens at failpoints: the hook that `stream_server.failpoints` calls in processes under test.

    STREAM_FAILPOINTS_HOOK=…/tests/support/failpoints.py
    STREAM_FAILPOINTS="checkpoint.renamed=kill@3,client.before_send=delay:0.5"

What stands in the environment when this file is loaded is armed in that process: NAME=ACTION[@N], parted by
commas, and the N-th passage (1 by default) makes it happen. The actions are kill (SIGKILL), stop (SIGSTOP), exit:CODE,
raise (a `FailpointError`), raise:ERRNO (an OSError such as ENOSPC), delay:SECONDS, and trace, which notes each passage.

With `STREAM_FAILPOINTS_DIR`, a failpoint happens once among all processes that share this folder: a restarted server
would die at it for ever. A file named after it there says which process it was; `trace` has the traced passages.
"""

import contextlib
import errno
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

HOOK_VARIABLE = "STREAM_FAILPOINTS_HOOK"
VARIABLE = "STREAM_FAILPOINTS"
FOLDER_VARIABLE = "STREAM_FAILPOINTS_DIR"
TRACE_FILE = "trace"
LONGEST_S = 1e9


class FailpointError(RuntimeError):
    """The error of an armed failpoint, which no code expects."""


class Armed:
    """A failpoint at which something happens: at its `turn`-th passage, or at every one when `turn` is None."""

    def __init__(
        self, name: str, act: Callable[[], Exception | None], *, turn: int | None = 1, folder: Path | None = None
    ) -> None:
        self.name = name
        self._act = act
        self._turn = turn
        self._folder = folder
        self._passages = itertools.count(1)

    def passed(self) -> Exception | None:
        """Any thread: the counter is one operation of the interpreter."""
        if self._turn is None or (next(self._passages) == self._turn and self._is_first()):
            return self._act()
        return None

    def _is_first(self) -> bool:
        """Claim the passage among all processes, and leave a file that says which process it was."""
        if self._folder is None:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"failpoint {_passage(self.name)}")
            return True
        try:
            file = os.open(self._folder / self.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        os.write(file, _passage(self.name).encode())
        os.close(file)
        return True


def armed_by(text: str, folder: Path | None = None) -> dict[str, Armed]:
    """The failpoints that the text of the environment variable arms, by name.

    Raises:
        ValueError: the text is not of the form NAME=ACTION[@N],….
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    entries = [entry.strip() for entry in text.split(",")]
    return {armed.name: armed for armed in (_armed(entry, folder) for entry in entries if entry)}


def passed(name: str) -> Exception | None:
    """Do what is armed at this failpoint, if anything is; returns what the product raises there, as its own."""
    return _ARMED[name].passed() if name in _ARMED else None


def failpoints(folder: Path | None, *armed: str) -> dict[str, str]:
    """The variables that arm failpoints such as `checkpoint.renamed=kill@2`.

    Each happens once among all processes, which leave their notes in `folder`; without one, in each process.
    """
    variables = {HOOK_VARIABLE: os.path.abspath(__file__), VARIABLE: ",".join(armed)}
    return variables if folder is None else variables | {FOLDER_VARIABLE: str(folder)}


def _armed(entry: str, folder: Path | None) -> Armed:
    name, is_given, rest = entry.partition("=")
    action, has_turn, turn = rest.partition("@")
    word, _, value = action.partition(":")
    try:
        if not name or not is_given:
            raise ValueError("a name and an action are needed")
        if has_turn and int(turn) < 1:
            raise ValueError("passages count from 1")
        if word == "trace":
            if folder is None or has_turn:
                raise ValueError(f"trace writes each passage into {FOLDER_VARIABLE}")
            return Armed(name, lambda: _trace(name, folder), turn=None)
        return Armed(name, _act(word, value, name), turn=int(turn) if has_turn else 1, folder=folder)
    except ValueError as error:
        expected = "NAME=ACTION[@N], such as checkpoint.renamed=kill@3, with kill, stop, exit:CODE, raise[:ERRNO]"
        text = f"{VARIABLE} must be a list of {expected}, delay:SECONDS or trace, but has {entry!r}: {error}"
        raise ValueError(text) from None


def _act(word: str, value: str, name: str) -> Callable[[], Exception | None]:
    """The action itself; `value` is checked now, not when it is met."""
    if word in ("kill", "stop") and not value:
        number = signal.SIGKILL if word == "kill" else signal.SIGSTOP
        return lambda: os.kill(os.getpid(), number)
    if word == "exit":
        code = int(value)
        if not 0 <= code <= 255:
            raise ValueError(f"{code} is not an exit code")
        return lambda: os._exit(code)
    if word == "delay":
        seconds = float(value)
        if not 0 <= seconds <= LONGEST_S:
            raise ValueError(f"cannot wait {value} s")
        return lambda: time.sleep(seconds)
    if word == "raise":
        return _raise(value, name)
    raise ValueError(f"{word!r} is no action")


def _raise(value: str, name: str) -> Callable[[], Exception]:
    number = getattr(errno, value, None) if value else 0
    if not isinstance(number, int):
        raise ValueError(f"{value!r} is not the name of an errno")

    def act() -> Exception:
        if number:
            return OSError(number, os.strerror(number), f"failpoint {name}")
        return FailpointError(f"failpoint {name}")

    return act


def _trace(name: str, folder: Path) -> None:
    file = os.open(folder / TRACE_FILE, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, _passage(name).encode())
    os.close(file)


def _passage(name: str) -> str:
    return f"{name} {os.getpid()} {time.time():.6f}\n"


def _armed_by_environment() -> dict[str, Armed]:
    folder = os.environ.get(FOLDER_VARIABLE)
    return armed_by(os.environ.get(VARIABLE, ""), Path(folder) if folder else None)


_ARMED = _armed_by_environment()
