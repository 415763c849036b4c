"""Restarts of the server: how it ended, as report.json and exit.json tell, and whether it is started again.

The `Supervisor` asks when mpirun has ended, or has been ended since a rank was lost.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream_server.errors import (
    CODES_BY_BATCH,
    CODES_OF_REFUSAL,
    EXIT_SAVED,
    FINAL_CODES,
    ConfigError,
    NotBalanced,
    RankLost,
    UserCodeError,
)
from stream_server.storage.disk import read_text
from stream_server.wording import counted

MAX_PAUSE_S = 60.0
# A network or a node may be away for a minute or two.
NODE_PAUSE_S = 10.0
REPORT_FILE = "report.json"
FAILURE_FILE = "exit.json"
LARGEST_CODE = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerEnd:
    """The end of a server; `batch` is the one at which it failed, None when that was outside of training.

    `has_begun` unless the ranks are on several nodes and did not all come to life, as when a node cannot be reached.
    `is_of_job`: its job was over, or has lost its node, and it goes on in the next one.
    `why_refused` tells that mpirun, or the program itself, gave up before any rank came to life, and what to do.
    """

    exit_code: int
    message: str
    batch: int | None = None
    has_begun: bool = True
    is_of_job: bool = False
    why_refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Start it again after `pause_s`."""

    pause_s: float
    message: str


class Restarts:
    """Counts the restarts without progress, of which `limit` are allowed in a row.

    A server that is refused before any of them came to life would be refused each time.
    """

    def __init__(self, limit: int, *, num_in_a_row: int = 0, failed_batch: int | None = None) -> None:
        self.limit = limit
        self.num_in_a_row = num_in_a_row
        self.failed_batch = failed_batch
        self._has_progressed = False
        self._can_start = False

    def progressed(self) -> None:
        """A checkpoint was committed."""
        self.num_in_a_row = 0
        self._has_progressed = True

    def decide(self, end: ServerEnd, *, stopping: bool) -> Restart | ServerEnd:
        """Decide what to do after this end, or tell how the study ends; `stopping` when it was asked to stop."""
        has_progressed, self._has_progressed = self._has_progressed, False
        goes_on = end.is_of_job and not stopping
        if goes_on and has_progressed:
            return Restart(pause_s=0.0, message=f"{end.message}; it goes on in the next job")
        if end.exit_code in FINAL_CODES and not goes_on:
            return end
        if end.why_refused and not self._can_start:
            return replace(end, exit_code=ConfigError.exit_code, message=end.why_refused)
        self._can_start = self._can_start or not end.why_refused
        if stopping:
            return replace(end, message=f"{end.message}; it is not restarted, for it was to stop")
        if end.exit_code == UserCodeError.exit_code and end.batch is None:
            return replace(end, message=f"{end.message}; that was outside of training")
        if end.exit_code in CODES_BY_BATCH and end.batch is not None:
            before, self.failed_batch = self.failed_batch, end.batch
            if end.batch == before:
                return replace(end, message=f"{end.message}; batch {before} failed twice")
        if self.num_in_a_row >= self.limit:
            restarts = counted(self.num_in_a_row, "restart")
            limit = f"{restarts} in a row brought no new checkpoint, launcher.restarts allows no more"
            return replace(end, message=f"{end.message}; {limit}")
        self.num_in_a_row += 1
        # 0, 1, 2, 4 … s; the exponent is bounded, for a float is.
        pause_s = min(MAX_PAUSE_S, 2.0 ** min(self.num_in_a_row - 2, 9)) if self.num_in_a_row > 1 else 0.0
        when = "again"
        if not end.has_begun:
            pause_s = min(MAX_PAUSE_S, NODE_PAUSE_S * 2.0 ** min(self.num_in_a_row - 1, 9))
            when = f"again in {pause_s:g} s, when its nodes may be there"
        count = f"restart {self.num_in_a_row} of {self.limit} without a new checkpoint"
        return Restart(pause_s=pause_s, message=f"{end.message}; it is started {when} ({count})")


def lost(message: str) -> ServerEnd:
    """The end of a server that left no word."""
    return ServerEnd(exit_code=RankLost.exit_code, message=message)


class EndReports:
    """The two files, as far as they were written after `before`, which is what `versions` gave at the start."""

    def __init__(self, output_dir: Path, before: str) -> None:
        self.output_dir = output_dir
        self._before = before.split()

    @staticmethod
    def versions(output_dir: Path) -> str:
        """Return a text that changes when one of the files is written again."""
        return " ".join(_version(output_dir / name) for name in (REPORT_FILE, FAILURE_FILE))

    def read(
        self, status: int | None, *, was_planned: bool, has_left: bool = False, how: str = "the server has ended"
    ) -> ServerEnd:
        """Tell how the server ended; without a word of it, `how` it is known to have.

        Its files say so. The exit `status` of mpirun (None if unknown) lies when ranks differ, and is believed only of
        a server that left before it had a plan for the simulations: then study.json was refused, the set-up stopped, or
        the study had been finished before. Of one that said that it leaves, which `has_left`, the code is believed that
        stands for a report which could not be written.
        """
        report, failure = self._fresh(0, REPORT_FILE), self._fresh(1, FAILURE_FILE)
        for file in (report, failure):
            code = file.get("exit_code")
            if type(code) is int and 0 <= code <= LARGEST_CODE:
                batch = failure.get("batch")
                text = f": {file['message']}" if file.get("message") else ""
                return ServerEnd(
                    exit_code=code,
                    message=f"the server ended with exit code {code}{text}",
                    batch=batch if type(batch) is int else None,
                )
        if has_left and status == NotBalanced.exit_code:
            message = f"the server ended with exit code {status} and could not write its report: run it again"
            return ServerEnd(exit_code=status, message=message)
        if status is not None and not was_planned:
            if status == EXIT_SAVED:
                return ServerEnd(exit_code=status, message="the server was stopped while it was set up")
            if status in CODES_OF_REFUSAL:
                return ServerEnd(exit_code=status, message=f"the server refused to start, with exit code {status}")
            if status == 0 and _read(self.output_dir / REPORT_FILE).get("exit_code") == 0:
                return ServerEnd(exit_code=0, message="the study had been finished before")
        return lost(f"{how} and left no report")

    @property
    def has_report(self) -> bool:
        """Whether the server has written its report, after which it only leaves."""
        return bool(self._fresh(0, REPORT_FILE))

    def _fresh(self, position: int, name: str) -> dict[str, Any]:
        file = self.output_dir / name
        return {} if _version(file) == self._before[position] else _read(file)


def _version(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return "-"
    return f"{status.st_ino}:{status.st_mtime_ns}"


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
