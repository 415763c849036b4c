"""The backend `slurm-steps` in an allocation of a real Slurm."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobState, JobStatus, SavedJob
from stream_server.launcher.backends.slurm_steps import SlurmSteps
from tests.cluster.jobs import STUBBORN, WAITING, ended, exit_code, job, output, python, use, with_outage
from tests.support.cluster import LOGIN, Cluster
from tests.support.studies import StudyFolder
from tests.support.timing import until

pytestmark = pytest.mark.slow
REFUSED = ("Unable", "Slurm job")


@pytest.fixture
def backend(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSteps]:
    """Steps in an allocation of one core on each of two nodes."""
    use(cluster, monkeypatch)
    said = cluster.run(LOGIN, "sbatch", "--parsable", "-N2", "--ntasks-per-node=1", "--wrap=sleep 600").strip()
    monkeypatch.setenv("SLURM_JOB_ID", said)
    until(lambda: cluster.run(LOGIN, "squeue", "-h", "-j", said, "-t", "running"))
    config = StudyFolder(folder).load({"launcher.backend": "slurm-steps"})
    with closing(with_outage(SlurmSteps(config, grace_s=0.3))) as backend:
        yield backend
    cluster.run(LOGIN, "scancel", said)
    until(lambda: not cluster.run(LOGIN, "squeue", "-h", "-j", said, "-t", "running,completing"))


def test_steps_run_on_the_nodes_of_the_allocation_one_on_a_core(backend: SlurmSteps, folder: Path) -> None:
    specs = [python(folder, str(number), WAITING) for number in range(3)]
    handles = [backend.submit(spec) for spec in specs]
    until(lambda: sum(bool(_said(spec.folder)) for spec in specs) == 2)
    until(lambda: [status.state for status in backend.query(handles).values()].count(JobState.QUEUED) == 1)
    assert {_said(spec.folder) for spec in specs} == {"up n1\n", "up n2\n", ""}
    for spec in specs:
        (spec.folder / "go").touch()
    assert [exit_code(backend, *it) for it in zip(handles, (spec.folder for spec in specs), strict=True)] == [4] * 3


def _said(folder: Path) -> str:
    file = folder / "output.log"
    return file.read_text() if file.exists() else ""


def test_a_step_has_the_environment_that_it_is_given(backend: SlurmSteps, folder: Path) -> None:
    odd = "$(touch x) '\" \n;"
    spec = job(folder, "0", "printenv", "ODD", ODD=odd, SLURM_JOB_ID=os.environ["SLURM_JOB_ID"], SLURM_OVERLAP="1")
    # As in a batch script with --export=NONE.
    spec = replace(spec, environment={**spec.environment, "SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1"})
    assert exit_code(backend, backend.submit(spec), spec.folder) == 0
    assert _said(spec.folder) == odd + "\n"


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_step_that_ignores_term_is_killed_on_its_node(
    cluster: Cluster, backend: SlurmSteps, folder: Path, is_ours: bool
) -> None:
    spec = python(folder, "0", STUBBORN)
    handle = backend.submit(spec)
    output(spec.folder)
    if not is_ours:
        other = with_outage(SlurmSteps(StudyFolder(folder).load({"launcher.backend": "slurm-steps"}), grace_s=0.3))
        handle = other.reattach(SavedJob(folder=spec.folder, marks=spec.marks, handle=handle))
        other.cancel([handle])
        ended(other, handle)
    else:
        backend.cancel([handle])
        ended(backend, handle)
    assert "0-attempt-0" not in cluster.run(LOGIN, "squeue", "-h", "--steps", "-o", "%j")


def test_a_step_whose_srun_is_killed_has_ended_only_when_slurm_knows_it_no_more(
    cluster: Cluster, backend: SlurmSteps, folder: Path
) -> None:
    spec = python(folder, "0", STUBBORN)
    handle = backend.submit(spec)
    output(spec.folder)
    mark = str(spec.folder / "connection.json")
    for process in psutil.process_iter(["name", "environ"]):
        if process.info["name"] == "srun" and (process.info["environ"] or {}).get("STREAM_CONNECTION") == mark:
            process.send_signal(signal.SIGKILL)
    ended(backend, handle)
    assert "0-attempt-0" not in cluster.run(LOGIN, "squeue", "-h", "--steps", "-o", "%j")


def test_without_an_allocation_the_study_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(cluster, monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match="Start the study from a batch script"):
        SlurmSteps(StudyFolder(tmp_path).load({"launcher.backend": "slurm-steps"}))


@pytest.mark.full
def test_what_slurm_does_not_begin_or_ends_with_the_allocation_is_not_held_against_a_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(1) as cluster:
        use(cluster, monkeypatch)
        said = cluster.run(LOGIN, "sbatch", "--parsable", "--ntasks=2", "--wrap=sleep 600").strip()
        monkeypatch.setenv("SLURM_JOB_ID", said)
        until(lambda: cluster.run(LOGIN, "squeue", "-h", "-j", said, "-t", "running"))
        config = StudyFolder(folder).load({"launcher.backend": "slurm-steps"})
        with closing(with_outage(SlurmSteps(config, grace_s=0.3, retry_s=1.0))) as backend:
            cluster.stop_controller()
            early, late = python(cluster.shared, "0", WAITING), python(cluster.shared, "1", WAITING)
            handle = backend.submit(early)
            assert "Unable to contact slurm controller" in _waits(backend, handle).reason
            cluster.start_controller()
            until(lambda: backend.query([handle])[handle].state is JobState.RUNNING and _said(early.folder))
            cluster.run(LOGIN, "scancel", said)
            assert ended(backend, handle).excuse == "the end of its allocation"
            assert said in _waits(backend, backend.submit(late)).reason


def _waits(backend: SlurmSteps, handle: str) -> JobStatus:
    """The status of a step that Slurm could not begin."""
    return until(
        lambda: (
            (it := backend.query([handle])[handle]).state is JobState.QUEUED and it.reason.startswith(REFUSED) and it
        )
    )
