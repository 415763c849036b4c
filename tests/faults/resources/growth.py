"""Long lives: what a launcher holds after many jobs, and after many starts of its server."""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from stream_server.launcher.backends.backend import JobSpec, JobState
from stream_server.launcher.backends.local import LocalBackend
from tests.launcher.study_run import StudyRun
from tests.support.timing import until

SETTLE_S = 10.0
LEAVE = [["live"], ["plan", 1], ["stop_all"], ["report", 0]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The resources that a process holds at one moment."""

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
    first = None
    with closing(LocalBackend()) as local:
        for number in range(num):
            job = folder / f"job-{number}"
            job.mkdir()
            mark = str(job / "connection.json")
            environment = {"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark}
            handle = local.submit(
                JobSpec(command=("true",), environment=environment, folder=job, marks=frozenset({mark}))
            )
            until(lambda handle=handle: local.query([handle])[handle].state is JobState.ENDED)  # type: ignore[misc]
            first = first or Held.by(os.getpid())
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
            run.wait_until(
                lambda number=number: log.exists() and f"checkpoint {number + 1} is committed" in log.read_text()
            )  # type: ignore[misc]
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
    """The resources of a process once they are as expected, or after a while."""
    with suppress(AssertionError):
        until(lambda: Held.by(pid) == expected, SETTLE_S)
    return Held.by(pid)
