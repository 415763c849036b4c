"""Long lives: what a launcher holds after many jobs, and after many starts of its server."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from stream_server.launcher.job_spec import JobSpec
from stream_server.launcher.jobs import LocalJobs
from tests.launcher.study_run import StudyRun
from tests.resources.victim import until

SETTLE_S = 10.0
LEAVE = [["live"], ["plan", 1], ["stop_all"], ["report", 0]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a process has at one moment."""

    num_files: int
    num_threads: int
    num_children: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = psutil.Process(pid)
        return cls(
            num_files=process.num_fds(),
            num_threads=process.num_threads(),
            num_children=len(process.children(recursive=True)),
        )


def jobs(folder: Path, num: int, tell: Callable[[], None] = lambda: None) -> tuple[Held, Held]:
    """Run so many jobs, one after the other; what this process holds after the first, and after the last."""
    (folder / "job").mkdir()
    mark = str(folder / "job" / "connection.json")
    environment = {"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark}
    spec = JobSpec(command=("true",), environment=environment, folder=folder / "job", marks=frozenset({mark}))
    num_children = Held.by(os.getpid()).num_children
    first = None
    with LocalJobs() as local:
        for _ in range(num):
            local.submit(spec)
            until(lambda: local.poll(0.0))
            if first is None:
                # PSI/J starts its thread with the first child, which it reaps a little later.
                until(lambda: Held.by(os.getpid()).num_children == num_children)
                first = Held.by(os.getpid())
            tell()
        assert first is not None
        return first, _settled(os.getpid(), first)


def restarts(folder: Path, num: int, tell: Callable[[], None] = lambda: None) -> tuple[Held, Held]:
    """Kill the server of a study so many times; what its launcher holds with the first one, and with the last."""
    lives = [
        [["live"], ["plan", 1], ["wait_for_attempts", 1], ["commit", number + 1], ["wait_for_file", f"go-{number}"]]
        for number in range(num + 1)
    ]
    acts = [[*life, ["die"]] for life in lives[:-1]] + [[*lives[-1], *LEAVE[2:]]]
    first = last = None
    with StudyRun(folder, *acts) as run:
        log = run.output_dir / "logs" / "launcher.log"
        for number in range(num + 1):
            run.wait_until(lambda number=number: log.exists() and f"generation={number + 1}," in log.read_text())  # type: ignore[misc]
            run.wait_for_output(0)
            first = first or Held.by(run.launcher.pid)
            last = _settled(run.launcher.pid, first)
            (folder / f"go-{number}").touch()
            tell()
        assert run.end() == 0, run.errors
        assert run.num_starts == num + 1
    assert first is not None
    assert last is not None
    return first, last


def _settled(pid: int, expected: Held) -> Held:
    """What a process holds once that is no more than before, or after a while."""
    with suppress(AssertionError):
        until(lambda: Held.by(pid) == expected, SETTLE_S)
    return Held.by(pid)
