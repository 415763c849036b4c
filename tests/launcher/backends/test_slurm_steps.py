"""Steps of an allocation of Slurm, with commands that answer as those of Slurm 22.05 have answered."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stream_server.launcher.backends import slurm
from stream_server.launcher.backends.allocation import time_left_s
from stream_server.launcher.backends.backend import FIRST_S, JobSpec, JobState, JobStatus, SavedJob
from stream_server.launcher.backends.slurm_steps import SlurmSteps
from tests.cluster.jobs import with_outage
from tests.support.studies import StudyFolder
from tests.support.timing import until

AWAY = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)"
CUT_OFF = "slurmstepd-n2: error: *** STEP 7.2 ON n2 CANCELLED AT 2026-11-28T15:58:46 DUE TO TIME LIMIT ***"
TERMINATED = "srun: error: n2: task 0: Terminated"
SRUN = """#!/bin/sh
cd "{folder}"
if [ -e says ]; then cat says >&2; exit $(cat code); fi
while case $1 in -*) true;; *) false;; esac; do shift; done
cd "$OLDPWD"
exec "$@"
"""
SQUEUE = """#!/bin/sh
case "$*" in
*--steps*) ;;
*) cat "{folder}/queue" || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }} ;;
esac
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands: srun `says` something and exits with a `code`, or runs its command; `queue` is the job's"""
    folder = tmp_path / "slurm commands"
    folder.mkdir()
    for name, text in {"srun": SRUN, "squeue": SQUEUE, "scancel": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
    (folder / "queue").write_text("RUNNING\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return folder


@pytest.fixture
def backend(commands: Path, tmp_path: Path) -> Iterator[SlurmSteps]:
    config = StudyFolder(tmp_path).load({"launcher.backend": "slurm-steps"})
    with closing(with_outage(SlurmSteps(config, grace_s=0.1, retry_s=0.0))) as backend:
        yield backend


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    folder = tmp_path / "simulations" / "0" / "attempt-0"
    folder.mkdir(parents=True)
    mark = str(folder / "connection.json")
    environment = {"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark}
    return JobSpec(
        command=("sh", "-c", "echo computed; exit 4"), environment=environment, folder=folder, marks=frozenset({mark})
    )


def says(commands: Path, words: str, code: int = 1) -> None:
    (commands / "code").write_text(str(code))
    (commands / "says").write_text(f"{words}\n")


def status(backend: SlurmSteps, handle: str, state: JobState) -> JobStatus:
    """Status of a step once it is in this state."""
    return until(lambda: (it := backend.query([handle])[handle]).state is state and it)


def test_a_step_waits_while_slurm_cannot_begin_it_and_is_begun_when_it_can(
    backend: SlurmSteps, commands: Path, spec: JobSpec
) -> None:
    says(commands, AWAY)
    handle = backend.submit(spec)
    waits = status(backend, handle, JobState.QUEUED)
    assert "Unable to contact slurm controller" in waits.reason
    backend.outage._clock = lambda: backend.outage._since + FIRST_S
    assert "Slurm begins no steps" in backend.outage.news()
    (commands / "says").unlink()
    ended = status(backend, handle, JobState.ENDED)
    assert (ended.exit_code, ended.excuse) == (4, "")
    assert (spec.folder / "output.log").read_text() == "computed\n"
    assert "there are answers again" in backend.outage.news()


def test_a_step_that_waits_to_be_begun_is_cancelled_at_once(backend: SlurmSteps, commands: Path, spec: JobSpec) -> None:
    backend.retry_s = 1000.0
    says(commands, AWAY)
    handle = backend.submit(spec)
    status(backend, handle, JobState.QUEUED)
    backend.cancel([handle])
    assert backend.query([handle])[handle].reason == "was cancelled before Slurm had begun its step"


@pytest.mark.parametrize(
    ("said", "code", "queue", "excuse"),
    [
        # srun ends with 0 when a node is lost.
        ("srun: error: Node failure on n2", 0, "RUNNING", "lost its node"),
        (f"computing\n{CUT_OFF}\n{TERMINATED}", 143, "TIMEOUT", "the end of its allocation"),
        (f"computing\n{CUT_OFF}\n{TERMINATED}", 143, "COMPLETING", "the end of its allocation"),
        # A program that takes TERM ends with a code of its own.
        (
            f"computing\n{CUT_OFF}\nsrun: error: n2: task 0: Exited with exit code 3",
            3,
            None,
            "the end of its allocation",
        ),
        # The time limit was that of the step, or somebody has ended the step alone.
        (f"computing\n{CUT_OFF}\n{TERMINATED}", 143, "RUNNING", ""),
        ("srun: error: n2: task 0: Segmentation fault", 139, "TIMEOUT", ""),
        ("srun: error: n2: task 0: Exited with exit code 1", 1, "RUNNING", ""),
    ],
)
def test_what_slurm_ends_with_the_allocation_or_a_node_is_not_the_fault_of_the_simulation(
    backend: SlurmSteps, commands: Path, spec: JobSpec, said: str, code: int, queue: str | None, excuse: str
) -> None:
    says(commands, said, code)
    (commands / "queue").unlink()
    if queue is not None:
        (commands / "queue").write_text(f"{queue}\n")
    ended = status(backend, backend.submit(spec), JobState.ENDED)
    assert ended.excuse == excuse
    assert ended.exit_code


def test_a_step_that_slurm_ended_with_the_allocation_of_another_launcher_is_excused(
    backend: SlurmSteps, commands: Path, spec: JobSpec
) -> None:
    (spec.folder / "job.name").write_text("study-0-attempt-0")
    (spec.folder / "job.exit").write_text("143\n")
    (spec.folder / "output.log").write_text(f"computing\n{CUT_OFF}\n{TERMINATED}\n")
    handle = backend.reattach(SavedJob(folder=spec.folder, marks=spec.marks, handle=None))
    assert status(backend, handle, JobState.ENDED).excuse == "the end of its allocation"
    (spec.folder / "output.log").write_text(f"{AWAY}\n")
    handle = backend.reattach(SavedJob(folder=spec.folder, marks=spec.marks, handle=None))
    assert status(backend, handle, JobState.ENDED).excuse == "Slurm begins no steps"


@pytest.mark.parametrize(
    ("said", "could_begin"),
    [
        (AWAY, False),
        ("srun: error: Unable to create step for job 1: Job/step already completing or completed", False),
        ("srun: error: Slurm job 1 has expired", False),
        ("srun: error: Unable to confirm allocation for job 99: Invalid job id specified", False),
        ("srun: error: Unable to create step for job 1: Socket timed out on send/recv operation", False),
        ("srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure", False),
        ("srun: error: Unable to create step for job 2: More processors requested than permitted", True),
        ("srun: error: Unable to create step for job 2: Requested node configuration is not available", True),
        ("srun: error: n1: task 0: Exited with exit code 2", True),
        (f"computing\n{AWAY}", True),
        (f"{AWAY}\nsrun: error: n1: task 0: Exited with exit code 2", True),
        ("", True),
    ],
)
def test_a_step_that_never_began_is_told_from_one_that_failed_or_never_could(said: str, could_begin: bool) -> None:
    assert (slurm.why_not_begun(said) == "") == could_begin


@pytest.mark.parametrize(("left", "seconds"), [("9:57", 597.0), ("UNLIMITED", float("inf")), ("INVALID", float("inf"))])
def test_the_end_of_the_allocation_is_known_from_slurm(commands: Path, left: str, seconds: float) -> None:
    (commands / "queue").write_text(f"{left}\n")
    assert time_left_s() == seconds


def test_outside_of_slurm_no_time_is_limited(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    assert time_left_s() == float("inf")


def test_what_nobody_expects_in_the_thread_that_asks_slurm_is_raised_by_query(
    backend: SlurmSteps, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: str) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(slurm, "steps", broken)
    handle = backend.submit(replace(spec, command=("sh", "-c", "kill -9 $$")))

    def is_raised() -> bool:
        try:
            backend.query([handle])
        except KeyError:
            return True
        return False

    until(is_raised)
    backend.cancel([handle])
    monkeypatch.undo()
