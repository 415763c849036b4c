"""The meaning of what Slurm's commands say, without them."""

from pathlib import Path

import pytest

from stream_server.launcher.backends import slurm_commands, slurm_job
from stream_server.launcher.backends.backend import JobState
from stream_server.launcher.backends.slurm_commands import QueueEntry, SubmitRefusal


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
        *((state, JobState.ENDED) for state in slurm_commands.ENDED),
    ],
)
def test_each_state_of_slurm_means_one_of_a_job(state: str, meant: JobState) -> None:
    entry = QueueEntry.of(f"12|{state}|None|heat-0|attempt")
    assert entry is not None
    assert entry.name == "heat-0|attempt"
    assert entry.status.state is meant
    is_excused = state in ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED")
    assert bool(entry.status.excuse) == is_excused


def test_a_line_that_is_none_of_a_job_is_passed_over() -> None:
    assert QueueEntry.of("slurm_load_jobs: a warning") is None


@pytest.mark.parametrize(
    ("message", "code", "refusal"),
    [
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, …)", 1, "full"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", 1, "away"),
        ("Batch job submission failed: Socket timed out on send/recv operation", 1, "away"),
        ("", -9, "away"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", 1, "wrong"),
        ("Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)", 1, "wrong"),
    ],
)
def test_a_refusal_is_a_limit_of_the_site_no_answer_or_the_fault_of_the_job(
    message: str, code: int, refusal: str
) -> None:
    assert slurm_commands.refusal_of(message, code) == SubmitRefusal(refusal)


def test_a_wrong_account_or_time_limit_comes_with_what_to_write() -> None:
    assert "simulation.job.account" in slurm_commands.hint("Invalid account or account/partition combination specified")
    assert "simulation.job.walltime" in slurm_commands.hint("Requested time limit is invalid (missing or exceeds)")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("infinite", None), ("1-00:00:00", 86400), ("2:00:00", 7200), ("30:00", 1800), ("", None), ("n/a", None)],
)
def test_the_time_limit_of_a_partition_is_read(limit: str, seconds: float | None) -> None:
    assert slurm_commands.seconds_in(limit) == seconds


def test_the_name_of_a_job_has_no_character_that_any_command_reads() -> None:
    name = slurm_job.job_name("my study; $(rm)", Path("/runs/simulations/12/attempt-0"), "ab12")
    assert name == "my_study_rm_-12-attempt-0-ab12"
