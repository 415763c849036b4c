"""What a server said of its end: report.json and exit.json in the output folder."""

import json
import signal
from pathlib import Path
from typing import Any

from stream_server.launcher.restarts import ServerEnd, lost

REPORT_FILE = "report.json"
EXIT_FILE = "exit.json"
SAVED_CODE = 75
REFUSED_CODES = frozenset({2, 6})
LARGEST_CODE = 255


class LastWords:
    """The two files, as far as they were written after `before`, which is what `versions` gave at the start."""

    def __init__(self, output_dir: Path, before: str) -> None:
        self.output_dir = output_dir
        self._before = before.split()

    @staticmethod
    def versions(output_dir: Path) -> str:
        """What changes when a file is written again, for both of them."""
        return " ".join(_version(output_dir / name) for name in (REPORT_FILE, EXIT_FILE))

    def read(self, status: int | None, *, was_planned: bool) -> ServerEnd:
        """How the server ended.

        Its files say so. The exit `status` of mpirun (None if unknown) lies when ranks differ, and is believed only of
        a server that left before it had a plan for the simulations: then study.json was refused, the set-up stopped, or
        the study had been finished before.
        """
        report, failure = self._fresh(0, REPORT_FILE), self._fresh(1, EXIT_FILE)
        for said in (report, failure):
            code = said.get("exit_code")
            if type(code) is int and 0 <= code <= LARGEST_CODE:
                batch = failure.get("batch")
                text = f": {said['message']}" if said.get("message") else ""
                return ServerEnd(
                    exit_code=code,
                    message=f"the server ended with exit code {code}{text}",
                    batch=batch if type(batch) is int else None,
                )
        if status is not None and not was_planned:
            if status == SAVED_CODE:
                return ServerEnd(exit_code=status, message="the server was stopped while it was set up")
            if status in REFUSED_CODES:
                return ServerEnd(exit_code=status, message=f"the server refused to start, with exit code {status}")
            if status == 0 and _read(self.output_dir / REPORT_FILE).get("exit_code") == 0:
                return ServerEnd(exit_code=0, message="the study had been finished before")
        return lost(f"the server {_described(status)} and left no report")

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
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _described(status: int | None) -> str:
    if status is None:
        return "has ended"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
