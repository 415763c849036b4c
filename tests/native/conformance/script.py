"""Runs a driver through a script. A driver reads lines from its standard input and answers each with one line.

    connect RANK NUM_RANKS [connection=PATH] [simulation=ID] [timeout=S] [NAME:VALUE] ...     a parameter is NAME:VALUE
    work [connection=PATH]                     connect as a worker, which may say `next`
    declare NAME SHAPE OFFSET DTYPE COUNT      all in C order, "-" for what is not given, "." for no dimension
    put NAME DTYPE COUNT SEED [LAYOUT]         values by the formula of values.py, in an array of some LAYOUT
    send STEP                                  a put that failed is told here, as it is in Python
    id  attempt  parameter NAME  time_steps  stop_reason  next  invalidate REASON  finish  abandon

The answers are "ok" with what was asked for, "stop", "error CODE: sentence", "staged" after a put, and "unsupported"
for a type that the language has not.

Lines of a script that begin with "!" are for the server (recording.Director). "& LINE" does not wait for the driver's
answer, which then is the answer to the line "wait". The answer to "~ LINE" depends on time, and is not told.
"""

import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.native.conformance.recording import Director, RecordingServer

DEADLINE_S = 100.0
# What to do is another thing in another language.
IN_PYTHON_ONLY = {"pass offset= to declare_field": "declare the field with its offset"}


def unexpected(told: bytes) -> str:
    """Standard error without the message of a `stream_finish` that failed, which its answer repeats."""
    lines = told.decode().splitlines(keepends=True)
    return "".join(line for line in lines if ", stream_finish: " not in line)


class Driver:
    """A process that obeys lines."""

    def __init__(self, command: list[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_")}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[3],
        )
        self._unread = b""

    def __enter__(self) -> "Driver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        try:
            _, told = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        if kind is None:
            assert self.process.returncode == 0, told.decode()
            self.check_complaint(unexpected(told))

    def check_complaint(self, told: str) -> None:
        """Look at what the process has written to its standard error."""
        assert told == ""

    def say(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line.encode() + b"\n" for line in lines))
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next answer."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the driver has not answered for {DEADLINE_S:g} s"
            read = os.read(self.process.stdout.fileno(), 65536)
            if not read:
                assert self.process.stderr is not None
                raise AssertionError(f"the driver has ended: {self.process.stderr.read().decode()}")
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()


def play(script: str, driver: Driver, server: RecordingServer) -> list[tuple[str, str | None]]:
    """Run the script; each line with the driver's answer, in which paths and addresses have names."""
    director = Director(server)
    folder = server.path.parent
    played: list[tuple[str, str | None]] = []
    names = dict(IN_PYTHON_ONLY)
    for line in filter(None, map(str.strip, script.splitlines())):
        answer = None
        names |= _names(server)
        if line.startswith("!"):
            director.obey(line[1:])
        elif line.startswith("&"):
            driver.say(line[1:].strip())
        elif line.startswith("~"):
            driver.say(line[1:].strip())
            driver.hear()
        else:
            if line != "wait":
                driver.say(_with_path(line, folder))
            answer = driver.hear()
            names |= _names(server)
            for value, name in names.items():
                answer = answer.replace(value, name)
        played.append((line, answer))
    return played


def _with_path(line: str, folder: Path) -> str:
    if not line.startswith(("connect", "work")):
        return line
    if "connection=" not in line:
        return f"{line} connection={folder}/connection.json"
    return line.replace("connection=./", f"connection={folder}/")


def _names(server: RecordingServer) -> dict[str, str]:
    """The texts that differ each time, and their names in the vectors."""
    ranks = {address: f"RANK-{rank}" for rank, (address,) in enumerate(server.endpoints)}
    return {server.connection.control[0]: "CONTROL"} | ranks | {str(server.path.parent): "FOLDER"}
