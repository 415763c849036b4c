"""Which simulation of a job brought it down, as its ranks' traces tell."""

from pathlib import Path

import pytest

from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.journal.records import AttemptEnded
from stream_server.launcher.schedule.simulation import RESTARTED
from stream_server.launcher.simulations.attempt_jobs import Traces, ends

NUM_RANKS = 2


def traces(tmp_path: Path, *codes: str, log: str = "") -> dict[tuple[int, int], Path]:
    """The folders of attempts whose ranks left these exit codes, such as "0 3"; "" if none ended by itself."""
    folders = {(simulation, 0): tmp_path / str(simulation) for simulation in range(len(codes))}
    for (simulation, _), folder in folders.items():
        folder.mkdir()
        (folder / "output.log").write_text(f"simulation {simulation}\n")
        if codes[simulation]:
            (folder / "ranks.exit").write_text("".join(f"{code}\n" for code in codes[simulation].split()))
    return folders


def ended(exit_code: int | None, reason: str = "ended", *, excuse: str = "") -> JobStatus:
    return JobStatus(state=JobState.ENDED, exit_code=exit_code, reason=reason, excuse=excuse)


def ends_of(folders: dict[tuple[int, int], Path], job: JobStatus) -> list[AttemptEnded]:
    return ends(folders, job, log=folders[0, 0] / "output.log", num_ranks=NUM_RANKS)


def judged(folders: dict[tuple[int, int], Path], job: JobStatus) -> list[tuple[int | None, str, str]]:
    return [
        (it.exit_code, it.reason, it.excuse)
        for it in ends(folders, job, log=folders[0, 0] / "output.log", num_ranks=NUM_RANKS)
    ]


WELL = (0, "ended with exit code 0", "")


@pytest.mark.parametrize(
    ("codes", "reason"), [("3", "a rank ended with exit code 3"), ("0 139", "a rank was killed by SIGSEGV")]
)
def test_one_of_which_a_rank_failed_is_to_blame_and_the_others_are_excused(
    tmp_path: Path, codes: str, reason: str
) -> None:
    excused = (None, "was ended with its job", "simulation 1, which shared the job, failed")
    folders = traces(tmp_path, "0", codes, "0 0", "")
    assert judged(folders, ended(3)) == [excused, (3, reason, ""), WELL, excused]


def test_one_that_called_mpi_abort_under_mpich_is_to_blame(tmp_path: Path) -> None:
    folders = traces(tmp_path, "", "")
    text = "RuntimeError: diverged\nAbort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort\n"
    (folders[1, 0] / "output.log").write_text(text)
    excused = (None, "was ended with its job", "simulation 1, which shared the job, failed")
    assert judged(folders, ended(1)) == [excused, (1, "a rank called MPI_Abort", "")]


def test_when_nobody_can_be_shown_to_be_at_fault_all_that_did_not_end_well_have_failed(tmp_path: Path) -> None:
    folders = traces(tmp_path, "0", "0 0", "")
    failed = (137, "was killed by SIGKILL", "")
    assert judged(folders, ended(137, "was killed by SIGKILL")) == [failed, WELL, failed]


def test_a_job_that_ended_well_has_ended_well_for_all(tmp_path: Path) -> None:
    assert judged(traces(tmp_path, "", "0"), ended(0)) == [WELL, WELL]


def test_a_job_whose_end_nobody_saw_is_no_failure_of_anybody(tmp_path: Path) -> None:
    job = ended(None, "gone", excuse=RESTARTED)
    assert all(excuse for _, _, excuse in judged(traces(tmp_path, "", "0 0"), job))


def test_one_that_is_alone_ended_as_its_job_did(tmp_path: Path) -> None:
    folders = traces(tmp_path, "3")
    assert ends_of(folders, ended(9, "ended with exit code 9")) == [
        AttemptEnded(
            simulation=0,
            attempt=0,
            exit_code=9,
            reason="ended with exit code 9",
            log=str(tmp_path / "0" / "output.log"),
        )
    ]
    (unseen,) = ends_of(folders, ended(None, excuse=RESTARTED))
    assert unseen.excuse == RESTARTED


def test_one_that_never_wrote_anything_is_explained_by_the_log_of_mpirun(tmp_path: Path) -> None:
    folders = traces(tmp_path, "", "")
    (folders[1, 0] / "output.log").unlink()
    assert [it.log for it in ends_of(folders, ended(1))] == [str(tmp_path / "0" / "output.log")] * 2


@pytest.mark.parametrize("content", [b"", b"\n", b"x\n", b"\xff\n", b"-1\n"])
def test_junk_in_the_place_of_exit_codes_blames_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ranks.exit").write_bytes(content)
    assert Traces.read(tmp_path).at_fault == ""
