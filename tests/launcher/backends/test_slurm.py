"""The meaning of what Slurm's commands say, without them."""

import os
import re
from pathlib import Path

import pytest

from stream_server.config.job_sections import JobSettings
from stream_server.errors import ConfigError
from stream_server.launcher.backends import job_script, slurm
from stream_server.launcher.backends.allocation import Allocation
from stream_server.launcher.backends.backend import JobState
from stream_server.launcher.backends.scheduler import SubmitRefusal, refusal_of
from tests.cluster.jobs import simulations_backend
from tests.support.studies import StudyFolder

# As Slurm 22.05 with slurmdbd answered, each limit on a line of its own before the sentence.
BY_LIMITS = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
SUBMIT_LIMITS = ("QOSMaxSubmitJobPerUserLimit", "AssocMaxSubmitJobLimit", "QOSGrpSubmitJobsLimit")
SIZE_LIMITS = ("QOSMaxCpuPerJobLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit")


@pytest.mark.parametrize(
    ("state", "meant"),
    [
        ("PENDING", JobState.QUEUED),
        ("CONFIGURING", JobState.QUEUED),
        ("REQUEUE_HOLD", JobState.QUEUED),
        ("RUNNING", JobState.RUNNING),
        ("SUSPENDED", JobState.RUNNING),
        ("STAGE_OUT", JobState.RUNNING),
        ("A_STATE_OF_TOMORROW", JobState.RUNNING),
        ("COMPLETING", JobState.ENDING),
        *((state, JobState.ENDED) for state in slurm.ENDED),
    ],
)
def test_each_state_of_slurm_means_one_of_a_job(state: str, meant: JobState) -> None:
    entry = slurm.entry_of(f"12|{state}|None|10:00|heat-0|attempt")
    assert entry is not None
    assert entry.name == "heat-0|attempt"
    assert entry.status.state is meant
    is_excused = state in ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED")
    assert bool(entry.status.excuse) == is_excused


@pytest.mark.parametrize(
    ("limit", "told"),
    [("10:00", " of 10 min"), ("1-00:30:00", " of 24 h 30 min"), ("UNLIMITED", ""), ("1:30", " of 1 min 30 s")],
)
def test_a_job_that_ran_out_of_time_tells_how_much_it_had(limit: str, told: str) -> None:
    entry = slurm.entry_of(f"12|TIMEOUT|TimeLimit|{limit}|heat-0")
    assert entry is not None
    assert entry.status.reason == f"ended after its walltime{told} (simulation.job.walltime)"
    assert entry.status.is_out_of_time
    assert not entry.status.excuse


def test_a_line_that_is_none_of_a_job_is_passed_over() -> None:
    assert slurm.entry_of("slurm_load_jobs: a warning") is None


@pytest.mark.parametrize(
    ("message", "code", "refusal"),
    [
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, …)", 1, "full"),
        *((f"{limit} {BY_LIMITS}", 1, "full") for limit in SUBMIT_LIMITS),
        *((f"{limit} {BY_LIMITS}", 1, "wrong") for limit in SIZE_LIMITS),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", 1, "away"),
        ("Batch job submission failed: Socket timed out on send/recv operation", 1, "away"),
        ("fatal: Could not establish a configuration source", 1, "away"),
        ("", -9, "away"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", 1, "wrong"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", 1, "wrong"),
    ],
)
def test_a_refusal_is_a_limit_of_the_site_no_answer_or_the_fault_of_the_job(
    message: str, code: int, refusal: str
) -> None:
    found = refusal_of(message, code, full=slurm.FULL, away=slurm.AWAY)
    assert found == SubmitRefusal(refusal)


def test_a_wrong_account_or_time_limit_comes_with_what_to_write() -> None:
    assert "simulation.job.account" in slurm.Slurm.hint("Invalid account or account/partition combination specified")
    assert "sacctmgr show qos" in slurm.Slurm.hint(f"QOSMaxCpuPerJobLimit {BY_LIMITS}")
    assert "simulation.job.walltime" in slurm.Slurm.hint(f"QOSMaxWallDurationPerJobLimit {BY_LIMITS}")
    assert "simulation.job.walltime" in slurm.Slurm.hint("Requested time limit is invalid (missing or exceeds)")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("infinite", None), ("1-00:00:00", 86400), ("2:00:00", 7200), ("30:00", 1800), ("", None), ("n/a", None)],
)
def test_the_time_limit_of_a_partition_is_read(limit: str, seconds: float | None) -> None:
    assert slurm.seconds_in(limit) == seconds


def test_the_name_of_a_job_has_no_character_that_any_command_reads() -> None:
    name = job_script.job_name("my study; $(rm)", Path("/runs/simulations/12/attempt-0"), "ab12")
    assert name == "my_study_rm_-12-attempt-0-ab12"


def test_a_machine_of_no_cluster_is_to_blame_and_not_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "scancel", "squeue", "sinfo"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho '{name}: fatal: Could not establish a configuration source' >&2\nexit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    backend = simulations_backend(StudyFolder(tmp_path).load({"launcher.backend": "slurm"}))
    with pytest.raises(ConfigError, match=r"launcher\.backend: .* belongs to no cluster: .*configuration source"):
        backend.check()


@pytest.mark.parametrize(
    ("job", "ranks", "told"),
    [
        ({}, 6, ""),
        ({}, 7, r"simulation\.ranks: 7 ranks of 1 cores .* need 7 cores, and the allocation has 6 on 2 nodes"),
        ({"cores_per_rank": 4}, 1, r"simulation\.job\.cores_per_rank: 4 cores are on no node"),
        ({"memory": 3000 * 2**20}, 1, r"simulation\.job\.memory: 3,000 MiB are more than the 2,000 MiB"),
        ({"memory": 1000 * 2**20}, 1, ""),
    ],
)
def test_a_step_that_cannot_fit_into_the_allocation_is_told(job: dict[str, int], ranks: int, told: str) -> None:
    variables = {"SLURM_JOB_CPUS_PER_NODE": "3(x2)", "SLURM_MEM_PER_NODE": "2000"}
    size = Allocation.found({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"} | variables)
    assert size is not None
    assert re.fullmatch(f"{told}.*", size.problem(JobSettings(**job), ranks))
    assert bool(size.problem(JobSettings(**job), ranks)) == bool(told)


def test_the_cores_of_an_allocation_are_those_of_all_its_nodes() -> None:
    variables = {"SLURM_JOB_CPUS_PER_NODE": "72(x2),36", "SLURM_MEM_PER_CPU": "100"}
    size = Allocation.found({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"} | variables)
    assert size == Allocation(num_nodes=3, num_tasks=3, cores=(72, 72, 36), bytes_per_core=100 * 2**20)
