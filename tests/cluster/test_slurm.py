"""The backend `slurm` on a real Slurm: jobs, what becomes of them, and what happens when Slurm or the launcher dies."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobState, SavedJob
from stream_server.launcher.backends.batch_backend import BatchBackend
from tests.cluster.jobs import (
    STUBBORN,
    WAITING,
    backend_of,
    ended,
    exit_code,
    job,
    output,
    python,
    simulations_backend,
    state,
    use,
)
from tests.support.cluster import PROJECT, Cluster
from tests.support.studies import StudyFolder
from tests.support.timing import until

pytestmark = pytest.mark.slow


@pytest.fixture
def backend(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchBackend]:
    use(cluster, monkeypatch)
    with backend_of(folder) as backend:
        yield backend


def test_a_job_runs_its_command_as_it_stands_with_its_output_and_its_exit_code(
    backend: BatchBackend, folder: Path
) -> None:
    odd = ("a b", "$HOME", "`id`", "; exit 9", '"', "'", "*", "%j", "two\nlines", "--wrap=x")
    spec = job(folder, "it's 50% $(touch x) ;", "sh", "-c", 'pwd; printf "%s|" "$@"; exit 3', "sh", *odd)
    assert exit_code(backend, backend.submit(spec), spec.folder) == 3
    assert (spec.folder / "output.log").read_text() == f"{spec.folder}\n" + "".join(f"{word}|" for word in odd)
    assert not list(folder.rglob("x"))


def test_a_job_has_the_environment_it_is_given_and_slurms_own_but_not_ours(
    backend: BatchBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_LAUNCHER", "1")
    odd = {
        "ODD": "$(touch x) `touch x` '\" \n;",
        "SLURM_JOB_ID": "ours",
        "TMPDIR": "/ours",
        "BASH_FUNC_f%%": "() { :; }",
    }
    spec = job(folder, "0", "env", "-0", **odd)
    assert exit_code(backend, backend.submit(spec), spec.folder) == 0
    lines = (spec.folder / "output.log").read_text().split("\0")
    found = dict(line.split("=", 1) for line in lines if line)
    assert found["ODD"] == odd["ODD"]
    assert found["PATH"] == os.environ["PATH"]
    assert found["SLURM_JOB_ID"].isdecimal()
    assert found["TMPDIR"] != "/ours"
    assert not found.keys() & {"OF_THE_LAUNCHER", "SLURM_EXPORT_ENV"}
    assert not list(folder.rglob("x"))


def test_nothing_of_the_environment_is_on_a_command_line_or_in_the_script_that_slurm_keeps(
    cluster: Cluster, backend: BatchBackend, folder: Path
) -> None:
    spec = job(folder, "0", sys.executable, "-c", WAITING, TOKEN="secret-secret")
    handle = backend.submit(spec)
    output(spec.folder)
    [number] = cluster.run("login", "squeue", "-h", "-o", "%i", f"--name={handle}").split()
    cluster.run("login", "scontrol", "write", "batch_script", number, str(folder / "kept"))
    assert "job.sh" in (folder / "kept").read_text()
    assert "secret-secret" not in (folder / "kept").read_text() + cluster.run(
        "login", "scontrol", "show", "job", number
    )
    assert "secret-secret" not in "".join(
        it.read_bytes().decode() for it in Path("/proc").glob("[0-9]*/cmdline") if it.exists()
    )
    assert (spec.folder / "job.sh").stat().st_mode & 0o777 == 0o600
    (spec.folder / "go").touch()
    assert exit_code(backend, handle, spec.folder) == 4


def test_the_lines_of_setup_come_first_and_one_that_fails_ends_the_job(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(cluster, monkeypatch)
    setup = ["shopt -q login_shell && export LOADED='a b'", 'test -z "$SKIP"']
    with backend_of(folder, {"simulation.job.setup": setup}) as backend:
        good, bad = job(folder, "0", "printenv", "LOADED"), job(folder, "1", "printenv", "LOADED", SKIP="1")
        handles = [backend.submit(good), backend.submit(bad)]
        assert exit_code(backend, handles[0], good.folder) == 0
        assert exit_code(backend, handles[1], bad.folder) == 1
        # What a login shell reads first may write something, too.
        assert output(good.folder).splitlines()[-1] == "a b"
        assert output(bad.folder).splitlines()[-1] == f"simulation.job.setup: `{setup[1]}` ended with exit code 1"


def test_a_job_takes_what_its_ranks_need(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster, monkeypatch)
    changes = {
        "simulation.job.cores_per_rank": 2,
        "simulation.job.memory": "400MiB",
        "simulation.job.gpus_per_rank": 1,
        "simulation.job.walltime": "00:30:00",
        "simulation.job.partition": "short",
        "simulation.job.account": "physics",
        "simulation.job.nodes": 1,
        "simulation.job.options": {"nice": 5, "exclude": "n1", "contiguous": True, "spread-job": False},
    }
    with backend_of(folder, changes) as backend:
        spec = python(folder, "0", WAITING)
        handle = backend.submit(spec)
        assert output(spec.folder) == "up n2\n"
        shown = cluster.run(
            "login",
            "scontrol",
            "show",
            "job",
            "-o",
            cluster.run("login", "squeue", "-h", "-o", "%i", f"--name={handle}").strip(),
        )
        (spec.folder / "go").touch()
        ended(backend, handle)
    told = {
        "NumTasks=1",
        "CPUs/Task=2",
        "TimeLimit=00:30:00",
        "Partition=short",
        "MinMemoryCPU=200M",
        "Nice=5",
        "Requeue=0",
    }
    assert told <= set(shown.split())
    assert "gres:gpu:1" in shown
    assert "Account=physics" in shown


def test_a_cancel_is_term_first_and_a_job_that_ignores_it_is_killed(backend: BatchBackend, folder: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    polite, stubborn = python(folder, "0", code), python(folder, "1", STUBBORN)
    handles = [backend.submit(polite), backend.submit(stubborn)]
    output(polite.folder), output(stubborn.folder)
    backend.cancel(handles)
    assert {status.state for status in backend.query(handles).values()} == {JobState.ENDING}
    backend.cancel(handles)
    assert exit_code(backend, handles[0], polite.folder) == 5
    assert ended(backend, handles[1]).reason == "was cancelled"
    (stubborn.folder / "beat").unlink()
    time.sleep(0.2)
    assert not (stubborn.folder / "beat").exists()


def test_a_job_that_is_cancelled_at_once_never_runs(cluster: Cluster, backend: BatchBackend, folder: Path) -> None:
    spec = python(folder, "0", WAITING)
    handle = backend.submit(spec)
    backend.cancel([handle])
    ended(backend, handle)
    assert cluster.run("login", "squeue", "-h", f"--name={handle}") == ""


def test_a_handle_of_which_nothing_is_known_is_unknown(backend: BatchBackend) -> None:
    assert state(backend, "heat-0-attempt-0-0") is JobState.UNKNOWN
    backend.cancel(["heat-0-attempt-0-0"])
    assert backend.query(["heat-0-attempt-0-0"]) == {}


def test_closing_kills_what_still_runs(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster, monkeypatch)
    with backend_of(folder) as backend:
        spec = python(folder, "0", STUBBORN)
        handle = backend.submit(spec)
        output(spec.folder)
    until(lambda: not cluster.run("login", "squeue", "-h", f"--name={handle}"))


def test_one_that_scancel_ends_was_cancelled_from_outside(
    cluster: Cluster, backend: BatchBackend, folder: Path
) -> None:
    spec = python(folder, "0", STUBBORN)
    handle = backend.submit(spec)
    output(spec.folder)
    cluster.run("login", "scancel", f"--name={handle}")
    status = ended(backend, handle)
    assert status.reason == "was cancelled from outside"
    assert not status.excuse


def test_one_that_slurm_preempts_is_excused(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster, monkeypatch)
    changes = {
        "simulation.job.partition": "spare",
        "simulation.job.cores_per_rank": 4,
        "simulation.job.options": {"nodelist": "n1"},
    }
    with backend_of(folder, changes) as backend:
        spec = python(folder, "0", WAITING)
        handle = backend.submit(spec)
        output(spec.folder)
        cluster.run("login", "srun", "-w", "n1", "-n1", "-c4", "true")
        status = ended(backend, handle)
    assert status.reason == status.excuse == "was preempted by Slurm"


def test_one_that_waits_says_why(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster, monkeypatch)
    with backend_of(folder, {"simulation.job.partition": "closed"}) as backend:
        handle = backend.submit(python(folder, "0", WAITING))
        until(lambda: backend.query([handle])[handle].reason == "PartitionDown")
        assert state(backend, handle) is JobState.QUEUED


def test_no_more_than_max_queued_wait_in_the_queue(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(cluster, monkeypatch)
    changes = {"simulation.job.partition": "closed", "launcher.max_queued": 2}
    with backend_of(folder, changes) as backend:
        handles = [backend.submit(python(folder, str(number), WAITING)) for number in range(5)]
        until(lambda: [backend.query(handles)[it].reason for it in handles].count("PartitionDown") == 2)
        # Further looks at the queue change nothing.
        asked = len(_in_queue(cluster, handles))
        until(lambda: not backend._ask_at <= time.monotonic())
        assert asked == len(_in_queue(cluster, handles)) == 2
        backend.cancel(handles[:2])
        until(lambda: len(_in_queue(cluster, handles[2:])) == 2)


def _in_queue(cluster: Cluster, names: list[str]) -> list[str]:
    return cluster.run("login", "squeue", "-h", "-o", "%j", f"--name={','.join(names)}").split()


SUBMIT = """
import os, sys, time
from pathlib import Path
from tests.cluster.jobs import WAITING, backend_of, python
folder = Path(sys.argv[1])
with backend_of(folder) as backend:
    jobs = [python(folder, str(number), WAITING) for number in range(5)]
    handles = [backend.submit(spec) for spec in jobs]
    print(*handles, flush=True)
    if sys.argv[2] == "all run":
        while not all((spec.folder / "output.log").exists() for spec in jobs):
            time.sleep(0.05)
    os._exit(0)
"""


@pytest.mark.parametrize("when", ["all run", "at once"])
def test_no_job_of_a_launcher_that_was_killed_is_lost_or_submitted_twice(
    cluster: Cluster, backend: BatchBackend, folder: Path, when: str
) -> None:
    script = [sys.executable, "-c", SUBMIT, str(folder), when]
    said = subprocess.run(script, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True, check=True)
    names = said.stdout.decode().split()
    folders = [folder / "simulations" / str(number) / "attempt-0" for number in range(5)]
    handles = [
        backend.reattach(_saved(it, name if number % 2 else None))
        for number, (it, name) in enumerate(zip(folders, names, strict=True))
    ]
    for it in folders:
        (it / "go").touch()
    statuses = [ended(backend, handle) for handle in handles]
    if when == "all run":
        assert handles == names
        assert [status.reason for status in statuses] == ["ended with exit code 4"] * 5
    # Nobody saw how the others ended, or they never began.
    assert all(status.excuse for status in statuses if status.exit_code is None)
    all_names = cluster.run("login", "squeue", "-h", "-t", "all", "-o", "%j").split()
    assert all(all_names.count(name) <= 1 for name in names)


def _saved(folder: Path, handle: str | None) -> SavedJob:
    return SavedJob(folder=folder, marks=frozenset({str(folder / "connection.json")}), handle=handle)


# A site's limit holds the first two jobs back for a while; or the answer is lost, though the job is in the queue.
FULL = """#!/bin/sh
echo asked >>"{folder}/asked"
[ $(wc -l <"{folder}/asked") -gt 2 ] && exec {sbatch} "$@"
echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)" >&2
exit 1
"""
LOST = """#!/bin/sh
{sbatch} "$@" >/dev/null
[ -e "{folder}/lost" ] && exit 0
touch "{folder}/lost"
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


def _pretend(text: str, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sbatch comes first on the PATH."""
    use(cluster, monkeypatch)
    script = folder / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(text.format(folder=folder, sbatch=cluster.commands / "sbatch"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


def test_a_job_that_a_limit_of_the_site_holds_back_is_submitted_later(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(FULL, cluster, folder, monkeypatch)
    with backend_of(folder) as backend:
        spec = python(folder, "0", WAITING)
        handle = backend.submit(spec)
        until(lambda: "job submit limit" in backend.query([handle])[handle].reason)
        assert state(backend, handle) is JobState.QUEUED
        (spec.folder / "go").touch()
        assert exit_code(backend, handle, spec.folder) == 4


def test_a_submission_whose_answer_is_lost_is_found_in_the_queue_and_not_repeated(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(LOST, cluster, folder, monkeypatch)
    with backend_of(folder, missing_s=20) as backend:
        spec = python(folder, "0", WAITING)
        handle = backend.submit(spec)
        until(lambda: state(backend, handle) is JobState.RUNNING)
        (spec.folder / "go").touch()
        assert exit_code(backend, handle, spec.folder) == 4
    assert _all(cluster).count(handle) == 1


def test_jobs_go_on_while_the_controller_is_away_and_those_that_ended_meanwhile_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(1) as cluster:
        use(cluster, monkeypatch)
        folder = cluster.shared / "study"
        folder.mkdir()
        with backend_of(folder, missing_s=2) as backend:
            runs = python(folder, "0", WAITING)
            handle = backend.submit(runs)
            output(runs.folder)
            until(lambda: state(backend, handle) is JobState.RUNNING)
            cluster.stop_controller()
            late = python(folder, "1", WAITING)
            late_handle = backend.submit(late)
            until(lambda: backend.outage.news() or backend.query([late_handle])[late_handle].reason)
            assert state(backend, handle) is JobState.RUNNING
            (runs.folder / "go").touch()
            until(lambda: (runs.folder / "job.exit").exists())
            assert state(backend, handle) is JobState.RUNNING
            cluster.start_controller()
            assert exit_code(backend, handle, runs.folder) == 4
            (late.folder / "go").touch()
            assert exit_code(backend, late_handle, late.folder) == 4
            assert _all(cluster).count(late_handle) == 1


def _all(cluster: Cluster) -> list[str]:
    return cluster.run("login", "squeue", "-h", "-t", "all", "-o", "%j").split()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": "nosuch"}, "invalid partition specified: nosuch"),
        ({"partition": "short", "walltime": "02:00:00"}, "longer than the time limit of the partition, 1 h"),
        ({"memory": "900GiB"}, "No node has so many cores"),
        ({"options": {"constraint": "a100"}}, "Correct simulation.job.options.constraint"),
        ({"options": {"nosuch": 1}}, "unrecognized option '--nosuch=1'"),
    ],
    ids=str,
)
def test_what_slurm_would_refuse_is_told_before_anything_is_submitted(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    use(cluster, monkeypatch)
    with (
        backend_of(folder, {f"simulation.job.{name}": value for name, value in changes.items()}) as backend,
        pytest.raises(ConfigError, match=r"simulation\.job") as caught,
    ):
        backend.check()
    assert told in str(caught.value)


def test_a_job_that_slurm_refuses_cannot_be_started(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(cluster, monkeypatch)
    with backend_of(folder, {"simulation.job.partition": "nosuch"}) as backend:
        status = ended(backend, backend.submit(python(folder, "0", WAITING)))
    assert status.reason.startswith("could not be submitted: ")
    assert "Write simulation.job.partition" in status.reason


def test_without_slurms_commands_the_study_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = StudyFolder(tmp_path).load({"launcher.backend": "slurm"})
    with pytest.raises(ConfigError, match="sbatch and scancel and squeue were not found on PATH"):
        simulations_backend(config)
