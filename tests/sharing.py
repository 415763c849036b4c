"""A pytest plugin for processes that share one run: each takes files that no other has taken, and reports.

A file is imported when it is taken, so that no process pays for what others run. Reports are lines of JSON on the pipe
of `tests/run.py`; the last one is missing when the process dies.
"""

import fcntl
import json
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Minutes that are mostly waited for, beside all that computes: these begin at once.
FIRST = ("cluster/test_nodes.py", "cluster/test_allocations.py", "cluster/test_server_jobs.py")
# Then what starts processes of its own, and of that the folders with a file of minutes, so that the last files are
# short ones.
LONGEST_FIRST = (
    "study/",
    "launcher/",
    "cluster/",
    "faults/chaos/",
    "mpi/",
    "configs/",
    "native/",
    "install/",
    "templates/",
)
# Five seconds of a process, after which it can fork no study: some processes take these first, and the others last.
IMPORTS_TORCH = re.compile(r"^ *(?:import|from) .*torch", re.MULTILINE)
IMPORTS_TORCH_LATER = (
    "configs/test_studies.py",
    "docs/test_blocks.py",
    "install/test_readme.py",
    "mpi/models/test_models.py",
    "mpi/test_equality.py",
    "server/training/monitoring/test_memory.py",
    "study/restarts/test_curves.py",
    "study/training/test_prefetch.py",
    "study/training/test_trained_models.py",
    "templates/test_new_study.py",
    "test_benchmarks.py",
)
QUIET = "quiet"
MAX_REASON = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharing")
    group.addoption("--claims", type=Path, help="the folder in which the processes of a run note what they take")
    group.addoption("--reports", type=int, help="the file descriptor to which results are written")
    group.addoption(
        "--torch-first", action="store_true", help="begin with what imports torch, instead of ending with it"
    )


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    config.pluginmanager.register(Share(option.claims, option.reports, torch_first=option.torch_first))


class Share:
    """This process's share of a run."""

    def __init__(self, claims: Path, reports: int, *, torch_first: bool) -> None:
        self.claims = claims
        self.reports = reports
        self.torch_first = torch_first
        self._nodes: list[pytest.Item | pytest.Collector] = []
        self._quiet: list[pytest.Item] = []
        self._outcome, self._reason, self._seconds = "passed", "", 0.0
        self._cpu_s = _cpu_s()
        os.set_inheritable(reports, False)
        # Locked by every process of the run until it ends, in whatever way.
        self._running = os.open(claims.parent / "running", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._running, fcntl.LOCK_SH)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Look for files only. What `-k` and `-m` choose is asked of their tests, later."""
        option = session.config.option
        if option.collectonly:
            return None
        chosen = option.keyword, option.markexpr
        option.keyword = option.markexpr = ""
        try:
            session.perform_collect(genitems=False)
        finally:
            option.keyword, option.markexpr = chosen
        return True

    def pytest_collection_modifyitems(self, items: list[pytest.Item | pytest.Collector]) -> None:
        """Look into the folders that were found, before pytest forgets their conftests, as it does after collection."""
        if not self._nodes:
            files = (node for it in items for node in _files(it))
            self._nodes = sorted(files, key=partial(_order, torch_first=self.torch_first))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what no other process has taken, as pytest would if there were nothing else."""
        if session.config.option.collectonly:
            return None
        self._run(session, self._ours(session))
        if self._quiet:
            # There is nothing left to take: the others end when they are done, or wait here too.
            fcntl.flock(self._running, fcntl.LOCK_EX)
            self._run(session, iter(self._quiet))
        return True

    def _run(self, session: pytest.Session, items: Iterator[pytest.Item]) -> None:
        # A fixture lives as long as the next test needs it, so the next file is taken before the last test of this one.
        item = next(items, None)
        while item is not None:
            self._report(began=item.nodeid)
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.outcome != "passed" and self._outcome != "failed":
            self._outcome = report.outcome
            self._reason = _first_line(report)
        if report.when == "teardown":
            used_s = _cpu_s()
            cpu_s, self._cpu_s = used_s - self._cpu_s, used_s
            self._report(
                ended=report.nodeid, outcome=self._outcome, reason=self._reason, seconds=self._seconds, cpu_s=cpu_s
            )
            self._outcome, self._reason, self._seconds = "passed", "", 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._report(exit_code=int(session.exitstatus))

    def _ours(self, session: pytest.Session) -> Iterator[pytest.Item]:
        for path, nodes in groupby(self._nodes, key=lambda node: node.path):
            name = os.path.relpath(path, session.config.rootpath)
            if self._claim(name):
                self._report(took=name)
                items = self._tests(session, nodes)
                self._report(collected=len(items))
                self._quiet += [it for it in items if it.get_closest_marker(QUIET)]
                yield from (it for it in items if not it.get_closest_marker(QUIET))

    def _tests(self, session: pytest.Session, nodes: Iterator[pytest.Item | pytest.Collector]) -> list[pytest.Item]:
        with warnings.catch_warnings():
            # As pyproject.toml has it for tests.
            warnings.simplefilter("error")
            items = [item for node in nodes for item in session.genitems(node)]
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        session.testscollected += len(items)
        return items

    def _claim(self, name: str) -> bool:
        try:
            (self.claims / name.replace("/", "+")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _report(self, **values: object) -> None:
        try:
            os.write(self.reports, json.dumps(values).encode() + b"\n")
        except BrokenPipeError:
            pytest.exit("whoever started this run is gone", returncode=pytest.ExitCode.INTERRUPTED)


def _cpu_s() -> float:
    """The CPU time of this process and of all that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _first_line(report: pytest.TestReport) -> str:
    """The beginning of what went wrong."""
    if isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else report.longreprtext
    lines = text.strip().splitlines()
    return lines[0][:MAX_REASON] if lines else ""


def _files(node: pytest.Item | pytest.Collector) -> Iterator[pytest.Item | pytest.Collector]:
    """The files below a folder, none of which is imported; anything else as it is."""
    if not isinstance(node, pytest.Directory):
        yield node
        return
    report = node.ihook.pytest_make_collect_report(collector=node)
    node.ihook.pytest_collectreport(report=report)
    for each in report.result if report.passed else ():
        yield from _files(each)


def _order(node: pytest.Item | pytest.Collector, *, torch_first: bool) -> tuple[bool, bool, int, int, Path]:
    file = os.path.relpath(node.path, TESTS)
    return (
        file not in FIRST,
        (file in IMPORTS_TORCH_LATER or _imports_torch(node.path)) != torch_first,
        FIRST.index(file) if file in FIRST else len(FIRST),
        next((place for place, folder in enumerate(LONGEST_FIRST) if file.startswith(folder)), len(LONGEST_FIRST)),
        node.path,
    )


@cache
def _imports_torch(file: Path) -> bool:
    return IMPORTS_TORCH.search(file.read_text(errors="replace")) is not None
