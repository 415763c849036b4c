"""A process that runs tests in forks of itself, and imports what is slow to import once they have needed it.

It runs in a copy of the project. Each line that it reads is a `Job` in JSON, and each line that it writes the outcome.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from tests.support.timing import crowding

SLOW_TO_IMPORT = (
    *("numpy", "torch", "scipy.stats", "hypothesis", "pydantic", "msgspec", "zmq", "rich.console", "rich.progress"),
    *("matplotlib.pyplot", "bokeh.plotting", "pandas", "h5py", "safetensors", "tornado.web", "xxhash", "gest_api"),
)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_EVERY_S = 0.02


class Coverage:
    """A plugin of pytest: how long each test that passes or fails would take on an idle machine, and its lines.

    These are the lines of `files` that run during it.
    """

    def __init__(self, files: list[str]) -> None:
        self.lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, float] = {}
        self._files = set(files)
        self._skipped: set[str] = set()
        self._test = ""

    def _trace(self, frame: FrameType, event: str, value: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._files:
            return None
        self.lines[self._test][file].add(frame.f_lineno)
        return self._trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._test = item.nodeid
        started, crowd = time.monotonic(), crowding()
        try:
            return (yield)
        finally:
            if item.nodeid not in self._skipped:
                ended = self.failed if item.nodeid in self.failed else self.seconds
                ended[item.nodeid] = (time.monotonic() - started) / ((crowd + crowding()) / 2)
            self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self) -> Any:
        with self._traced():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Any:
        with self._traced():
            return (yield)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Only here: what looks for leaks between the tests makes most of the calls."""
        if not self._files:
            yield
            return
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skipped.add(report.nodeid)
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed:
            self._skipped.discard(report.nodeid)
            self.failed.setdefault(report.nodeid, 0.0)


class Selection:
    """A plugin of pytest: only these tests run, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self._place = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((it for it in items if it.nodeid in self._place), key=lambda it: self._place[it.nodeid])


def main() -> None:
    _set(PR_SET_PDEATHSIG, signal.SIGKILL)
    _set(PR_SET_CHILD_SUBREAPER, 1)
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _set(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _run(
    *, arguments: list[str], tests: list[str] | None, covers: list[str], limit_s: float, output: str
) -> dict[str, Any]:
    """Run tests in a fork: its exit code, None if it was ended at its limit, and what `Coverage` found by its end."""
    found_file = Path(output + ".json")
    found_file.unlink(missing_ok=True)
    started = time.monotonic()
    process = os.fork()
    if not process:
        _child(arguments, tests, covers, output)
    exit_code = _exit_code(process, started + limit_s)
    # Processes whose parents have ended are children of this one.
    while left := psutil.Process().children(recursive=True):
        for it in left:
            with suppress(psutil.Error):
                it.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
    found = json.loads(found_file.read_text()) if found_file.exists() else {}
    for name in found.pop("imported", ()):
        __import__(name)
    return {"exit_code": exit_code, "wall_s": time.monotonic() - started, **found}


def _exit_code(process: int, deadline: float) -> int | None:
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        time.sleep(LOOK_EVERY_S)


def _child(arguments: list[str], tests: list[str] | None, covers: list[str], output: str) -> None:
    exit_code = 70
    try:
        _set(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(nothing)
        os.close(file)
        coverage = Coverage(covers)
        exit_code = int(pytest.main(arguments, [coverage] if tests is None else [coverage, Selection(tests)]))
        lines = {test: {file: sorted(it) for file, it in lines.items()} for test, lines in coverage.lines.items()}
        imported = [name for name in SLOW_TO_IMPORT if name in sys.modules]
        found = {"lines": lines, "seconds": coverage.seconds, "failed": coverage.failed, "imported": imported}
        # As a whole or not at all: the process may be ended at any moment.
        unfinished = Path(output + ".part")
        unfinished.write_text(json.dumps(found))
        unfinished.rename(output + ".json")
        sys.stdout.flush()
    finally:
        os._exit(exit_code)


if __name__ == "__main__":
    main()
