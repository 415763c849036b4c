"""The logs of a run, as they are and as they grow."""

import heapq
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from stream_server.analysis.reading import RunFolder
from stream_server.errors import NotRunning
from stream_server.launcher.backends.backend import LOG_FILE
from stream_server.machine import descriptors
from stream_server.machine.log_end import shown_lines
from stream_server.machine.run_folder import attempt_folders
from stream_server.machine.screen import escaped, print_escaped, size_shown
from stream_server.storage.disk import MAX_TABLE_BYTES, by_own_links
from stream_server.wording import counted

LOOK_S = 0.2
MAX_CHARS = 2000
# What is read at once: of the states of a progress bar each is many times as large in memory.
PIECE_BYTES = 4 << 20
# All that is read of a log that is shown as a whole, and what is read for each line where the last ones are.
MAX_LOG_BYTES = MAX_TABLE_BYTES
LINE_BYTES = 16 << 10
# More than there are ranks.
MAX_LOGS = 100_000
OURS = "stream_server."
RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ([A-Z]+) +(.*)")
# Ranks also write which thread said it, and for which module.
ORIGIN = re.compile(r"(?:Thread-\d+ \(\S+\)|\S+) (\S+: )")


def server_logs(run: RunFolder) -> list[Path]:
    """The present logs of the launcher and all ranks; at most MAX_LOGS of a stranger's run."""
    return sorted(islice((run.path / "logs").glob("*.log"), MAX_LOGS))


def simulation_logs(run: RunFolder, simulation: int) -> list[Path]:
    """The output of the attempts of a simulation that is there now, in their order."""
    logs = [folder / LOG_FILE for folder in attempt_folders(run.path, simulation).values()]
    return [log for log in logs if log.exists()]


def newest_log(run: RunFolder, simulation: int) -> Path | None:
    return next(reversed(simulation_logs(run, simulation)), None)


def show(
    run: RunFolder, simulation: int | None, *, num_lines: int | None, follows: bool, runs: Callable[[], bool]
) -> None:
    """Write the last lines of the logs to the standard output; with `follows`, go on until nothing `runs` any more.

    `num_lines` None means all, each in full length, of the last MAX_LOG_BYTES of each log. Those of launcher
    and ranks are merged by time, and bear the name of their file. Of a simulation the newest attempt is shown; while it
    is followed also those that come after it.

    Raises:
        NotRunning: there are none, and none will come.
        ConfigError: there are more of launcher and ranks than this process may open.
    """

    def shown(line: Line) -> Shown:
        text = line.text if simulation is None else line.raw
        return line.time, text if num_lines is None else _shortened(text)

    tails: dict[Path, Tail] = {}
    num_bytes = _bytes_of(num_lines)
    is_first, has_lines, most = True, False, num_lines
    while True:
        # Asked before the files are read: what was written before the end is shown.
        goes_on = follows and runs()
        logs = server_logs(run) if simulation is None else simulation_logs(run, simulation)
        if is_first and simulation is not None:
            tails |= {path: Tail(path, num_bytes=0) for path in logs[:-1]}
        new = (
            map(shown, tails.setdefault(log, Tail(log, num_bytes=num_bytes)).lines(is_last=not goes_on)) for log in logs
        )
        if simulation is None:
            # As long as lines are merged, all logs are open.
            descriptors.require(len(logs), "logs")
            parts: Iterable[Iterable[Shown]] = new if most is None else (deque(part, most) for part in new)
            lines: Iterable[Shown] = heapq.merge(*parts, key=lambda line: line[0])
        else:
            lines = chain.from_iterable(new)
        for _, text in lines if most is None else deque(lines, most):
            has_lines = True
            sys.stdout.write(f"{escaped(text)}\n")
        sys.stdout.flush()
        for tail in tails.values() if is_first and num_lines is None else ():
            if tail.num_left_out:
                print_escaped(f"the first {size_shown(tail.num_left_out)} of {tail.path} were left out", sys.stderr)
        if logs:
            is_first, most = False, None
        if not goes_on:
            break
        time.sleep(LOOK_S)
    if logs and not has_lines:
        print(f"{logs[-1]} is empty", file=sys.stderr)
    if not tails:
        what = "logs" if simulation is None else f"output of simulation {simulation}"
        raise NotRunning(f"there is no {what} in {run.path}")


def last_lines(log: Path, num_lines: int) -> str:
    """The last lines of a log as they are, without an end of line at its end.

    Raises:
        OSError: it cannot be read.
    """
    lines = Tail(log, num_bytes=_bytes_of(num_lines)).lines(is_last=True)
    return "\n".join(line.raw for line in deque(lines, num_lines)).rstrip("\n")


def _bytes_of(num_lines: int | None) -> int:
    return MAX_LOG_BYTES if num_lines is None else min(max(PIECE_BYTES, num_lines * LINE_BYTES), MAX_LOG_BYTES)


def _shortened(text: str) -> str:
    """The text, or if it is very long its beginning and its end."""
    num = len(text) - MAX_CHARS
    half = MAX_CHARS // 2
    return text if num <= 0 else f"{text[:half]} … {counted(num, 'character')}, shown by -n 0 … {text[-half:]}"


# The time of a line, and what is shown of it.
Shown = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, of a record of this time; `text` is the line for people."""

    time: str
    text: str
    raw: str


class Tail:
    """The lines of the last `num_bytes` of a file, then new ones at its end.

    One that is longer than PIECE_BYTES comes in pieces of that size; so does what is left of a line that began before.
    """

    def __init__(self, path: Path, *, num_bytes: int) -> None:
        self.path = path
        self.num_left_out = 0
        self._num_bytes: int | None = num_bytes
        self._position = 0
        self._time = ""

    def lines(self, *, is_last: bool) -> Iterator[Line]:
        """New whole lines; at the `is_last` time also one without an end."""
        with open(self.path, "rb", opener=by_own_links) as file:
            # It may grow for as long as it is read.
            size = os.fstat(file.fileno()).st_size
            if self._num_bytes is not None:
                self._position = self.num_left_out = max(0, size - self._num_bytes)
                self._num_bytes = None
            file.seek(self._position)
            while line := file.readline(max(0, min(size - self._position, PIECE_BYTES))):
                if not line.endswith(b"\n") and len(line) < PIECE_BYTES and not is_last:
                    return
                self._position += len(line)
                for text in shown_lines(line.decode(errors="replace").rstrip("\r\n")):
                    yield self._line(text)

    def _line(self, raw: str) -> Line:
        """The line, without what is for developers; further lines of a record have the time of its first."""
        text = raw
        if match := RECORD.fullmatch(raw):
            # A clock that is set back must not mix up the lines of one file.
            self._time = max(self._time, raw[: match.end(1) + 4])
            level, text = match[2], match[3]
            if self.path.stem.startswith("server-") and (origin := ORIGIN.match(text)):
                text = text[origin.start(1) if not origin[1].startswith(OURS) else origin.end() :]
            text = text if level == "INFO" else f"{level}: {text}"
        return Line(self._time, f"{self._time.partition(',')[0]:<19} {self.path.stem:<8} | {text}", raw)
