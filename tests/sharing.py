"""A pytest plugin for processes that share one run: each takes files that no other has taken, and reports.

Reports are lines of JSON on the pipe of `tests/run.py`; the last one is missing when the process dies.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

# What waits for processes of its own comes first, so that the last files are short ones.
LONGEST_FIRST = ("study", "chaos", "mpi", "configs", "native", "install", "launcher")
# Each is a whole study.
COSTLY_FIXTURES = ("killed",)
QUIET = "quiet"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharing")
    group.addoption("--claims", type=Path, help="the folder in which the processes of a run note what they take")
    group.addoption("--reports", type=int, help="the file descriptor to which results are written")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Share(config.option.claims, config.option.reports))


class Share:
    """This process's share of a run."""

    def __init__(self, claims: Path, reports: int) -> None:
        self.claims = claims
        self.reports = reports
        self._outcome, self._seconds = "passed", 0.0
        os.set_inheritable(reports, False)
        # Locked by every process of the run until it ends, in whatever way.
        self._running = os.open(claims.parent / "running", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._running, fcntl.LOCK_SH)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: (_order(item), _unit(item)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._report(collected=len(session.items))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what no other process has taken, as pytest would if there were nothing else."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        # A fixture lives as long as the next test needs it, so the next file is taken before the last test of this one.
        ours = self._ours(session.items)
        item = next(ours, None)
        while item is not None:
            self._report(began=item.nodeid)
            following = next(ours, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.outcome != "passed" and self._outcome != "failed":
            self._outcome = report.outcome
        if report.when == "teardown":
            self._report(ended=report.nodeid, outcome=self._outcome, seconds=self._seconds)
            self._outcome, self._seconds = "passed", 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._report(exit_code=int(session.exitstatus))

    def _ours(self, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
        for unit, tests in groupby(items, key=_unit):
            if self._claim(unit):
                if unit == QUIET:
                    # The last unit: all others have been taken, and their processes leave when they are done.
                    fcntl.flock(self._running, fcntl.LOCK_EX)
                self._report(took=unit)
                yield from tests

    def _claim(self, unit: str) -> bool:
        try:
            (self.claims / unit.replace("/", "+")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _report(self, **values: object) -> None:
        try:
            os.write(self.reports, json.dumps(values).encode() + b"\n")
        except BrokenPipeError:
            pytest.exit("whoever started this run is gone", returncode=pytest.ExitCode.INTERRUPTED)


def _unit(item: pytest.Item) -> str:
    """The unit of sharing: a file, all that needs the same costly fixture, or all that needs a quiet machine."""
    if item.get_closest_marker(QUIET):
        return QUIET
    fixtures = getattr(item, "fixturenames", ())
    return next((name for name in COSTLY_FIXTURES if name in fixtures), item.nodeid.partition("::")[0])


def _order(item: pytest.Item) -> int:
    folder, unit = item.path.parent.name, _unit(item)
    if unit == QUIET:
        return len(LONGEST_FIRST) + 1
    if unit in COSTLY_FIXTURES:
        return -1
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
