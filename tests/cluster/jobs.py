"""Jobs for tests of a backend: what they run, and waiting for what they say."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stream_server.config import StudyConfig
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    Backend,
    JobSpec,
    JobState,
    JobStatus,
    Outage,
    exit_code_of,
)
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.registry import load_backend
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.launcher.backends.slurm import Slurm
from tests.support.cluster import Cluster
from tests.support.studies import StudyFolder
from tests.support.timing import until

AnyBackend = TypeVar("AnyBackend", bound=Backend)

WAITING = """
import os, sys, time
print("up", os.uname().nodename, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(4)
"""
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
while True:
    open("beat", "w").close()
    time.sleep(0.05)
"""


def use(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands on this process's PATH are those of the cluster."""
    monkeypatch.setenv("PATH", f"{cluster.commands}{os.pathsep}{os.environ['PATH']}")


def simulations_backend(config: StudyConfig) -> Any:
    """The backend of the simulations of a study, as the launcher makes it."""
    return load_backend(config, JobKind.of_simulations(config), Outage())


def with_outage(backend: AnyBackend) -> AnyBackend:
    """A backend as a launcher has it."""
    backend.outage = Outage()
    return backend


@contextmanager
def backend_of(folder: Path, changes: dict[str, Any] | None = None, **times: float) -> Iterator[BatchBackend]:
    """A backend that looks often, as each launcher makes one."""
    study = StudyFolder(folder)
    config = study.load({"launcher.backend": "slurm", **(changes or {})})
    kind = JobKind.of_simulations(config)
    with closing(
        with_outage(BatchBackend(kind, Slurm(kind), **{"ask_s": 0.1, "missing_s": 0.5, "retry_s": 0.2} | times))
    ) as backend:
        yield backend


def job(folder: Path, name: str, *command: str, **environment: str) -> JobSpec:
    """A job in a folder of its own."""
    own = folder / "simulations" / name / "attempt-0"
    own.mkdir(parents=True)
    mark = str(own / "connection.json")
    return JobSpec(
        command=command,
        environment={"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark, **environment},
        folder=own,
        marks=frozenset({mark}),
    )


def python(folder: Path, name: str, code: str) -> JobSpec:
    """A job that runs a program of Python."""
    return job(folder, name, sys.executable, "-c", code)


def state(backend: Backend, handle: str) -> JobState:
    return backend.query([handle]).get(handle, JobStatus(state=JobState.UNKNOWN)).state


def ended(backend: Backend, handle: str) -> JobStatus:
    """The status of a job once it has ended."""
    found: list[JobStatus] = []

    def has_ended() -> bool:
        found[:] = backend.query([handle]).values()
        return bool(found) and found[0].state is JobState.ENDED

    until(has_ended, told=lambda: str(found))
    return found[0]


def exit_code(backend: Backend, handle: str, folder: Path) -> int | None:
    """How a job ended, as the launcher finds out."""
    code = ended(backend, handle).exit_code
    return exit_code_of(folder / EXIT_FILE) if code is None else code


def output(folder: Path, contains: str = "\n") -> str:
    """The log of a job, once it `contains` something."""
    file = folder / "output.log"
    return until(lambda: text if file.exists() and contains in (text := file.read_text()) else "")
