"""One of the pytest processes of `tests/run.py`."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.built_once import SHARED_FOLDER
from tests.support.timing import Deadline

MARK = "STREAM_SERVER_TESTS_PART"
STACKS_S = 5.0
GRACE_S = 5.0
LOOK_S = 0.5
OUTPUT_TAIL = 20_000
NO_TESTS = 5


def described(process: psutil.Process) -> str:
    """The process, its command line and its working folder."""
    with suppress(psutil.Error):
        return f"{process} {' '.join(process.cmdline())} in {process.cwd()}"
    return str(process)


class Part:
    """A process, what it has reported, and whatever it started: all of that carries `mark` in its environment.

    At the end of the `with` block nothing of it runs any more.
    """

    def __init__(
        self, number: int, claims: Path, arguments: Sequence[str], *, mark: str, torch_first: bool = False
    ) -> None:
        self.number = number
        self.claims = claims
        self.arguments = arguments
        self.mark = mark
        self.torch_first = torch_first
        self.counts: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self.num_collected = 0
        self.num_left_behind = 0
        self.running = ""
        self.exit_code: int | None = None
        self.output = claims.parent / f"part-{number}.output"
        self._rest = b""

    def __enter__(self) -> Self:
        self.pipe, reports = os.pipe()
        options = ["-p", "tests.sharing", "-p", "no:cacheprovider", f"--claims={self.claims}", f"--reports={reports}"]
        options += ["--torch-first"] if self.torch_first else []
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-rs", *options, *self.arguments],
                env={**os.environ, MARK: self.mark, SHARED_FOLDER: str(self.claims.parent), "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[reports],
                start_new_session=True,
            )
        os.close(reports)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self.process.wait()
        os.close(self.pipe)

    @property
    def verdict(self) -> str:
        """The failure of the process if it died or left others behind; "" if it did neither."""
        if self.exit_code is None:
            where = f"in {self.running}" if self.running else "between tests"
            return f"died {where} (status {self.process.returncode})"
        return f"left {self.num_left_behind} processes behind" if self.num_left_behind else ""

    @property
    def has_failed(self) -> bool:
        return bool(self.verdict) or self.exit_code not in (0, NO_TESTS)

    def hear(self) -> bool:
        """Take in what it has reported; False once it has ended."""
        chunk = os.read(self.pipe, 2**16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(chunk)

    def left_behind(self) -> list[psutil.Process]:
        """The processes that it started and that still run after a moment to end."""
        deadline = Deadline(GRACE_S)
        while (alive := self._marked()) and not deadline.has_passed:
            psutil.wait_procs(alive, timeout=LOOK_S)
        return alive

    def stop(self) -> None:
        """End it if it still runs, and have it write the stacks of all threads first."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STACKS_S)
            self.kill()
            self.process.wait()

    def kill(self) -> None:
        """End all that carries the mark."""
        processes = self._marked()
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=GRACE_S)

    def say(self, text: str) -> None:
        print(f"part {self.number}: {text}", flush=True)

    def told(self) -> str:
        """Its output from the first failure on, or the end of it."""
        text = self.output.read_text(errors="replace")
        starts = [text.find(title) for title in ("= ERRORS =", "= FAILURES =") if title in text]
        return text[min(starts, default=0) :][-OUTPUT_TAIL:]

    def _take(self, report: dict[str, Any]) -> None:
        self.num_collected += report.get("collected", 0)
        self.exit_code = report.get("exit_code", self.exit_code)
        self.running = report.get("began", self.running)
        if "took" in report:
            self.say(report["took"])
        if "ended" in report:
            self.running = ""
            self.counts[report["outcome"]] += 1
            self.seconds[report["ended"]] = report["seconds"]
            self.cpu_s[report["ended"]] = report["cpu_s"]
            if report["outcome"] == "skipped":
                self.left_out[report["ended"]] = report["reason"]
            if report["outcome"] == "failed":
                self.failed[report["ended"]] = report["reason"]
                self.say(f"FAILED {report['ended']}")

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found
