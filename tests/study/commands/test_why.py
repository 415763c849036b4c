"""`stream-study why` tells what became of a simulation and why."""

from pathlib import Path

import pytest

from stream_server.commands.cli import main
from stream_server.launcher.journal import records
from stream_server.messages.launcher_link import Attached, Failed, GaveUp
from tests.support.runs import NUMPY_STUDY, run_here

BEGIN = records.LauncherStarted(pid=1, boot="b", link="l", supervises=True, resumed=False)
RESUME = records.LauncherStarted(pid=2, boot="b", link="l", supervises=True, resumed=True)


def starting(simulation: int, attempt: int, job: str | None = None) -> records.AttemptStarting:
    folder = f"/{simulation}/{attempt}"
    return records.AttemptStarting(simulation=simulation, attempt=attempt, folder=folder, public_key=None, job=job)


def run_with(folder: Path, *written: records.JournalRecord) -> Path:
    """The folder of a run of six simulations that was killed, with this journal."""
    (folder / "metrics").mkdir()
    (folder / "study.json").touch()
    (folder / "parameters.csv").write_text("simulation,x\n" + "".join(f"{it},0.5\n" for it in range(6)))
    (folder / "journal.jsonl").write_bytes(b"".join(map(records.encode, written)))
    return folder


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """`why(run, 3)` gives the lines of `stream-study why`."""

    def why(run: Path, simulation: int) -> list[str]:
        capsys.readouterr()
        assert main(["why", str(run), str(simulation)]) == 0
        return capsys.readouterr().out.splitlines()

    return why


def test_a_study_tells_why_simulations_were_tried_again_cancelled_and_given_up(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    command = ["python", "troubled.py", "crash", "3", "hang", "2"]
    settings = {"study.simulations": 3, "simulation.command": command, "simulation.timeout_s": 8}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    state, *lines = why(done.output_dir, 3)
    assert state.startswith("simulation 3 is given_up: ")
    crash = "ended with exit code 1"
    assert [line.partition(crash)[0] for line in lines] == [
        "  attempt 0 starts",
        "  attempt 0 failed: ",
        "  attempt 1 starts",
        "  attempt 1 failed: ",
        "  given up after 2 attempts: ",
    ]
    state, *lines = why(done.output_dir, 2)
    assert state == "simulation 2 is finished"
    late = "sent no new time step for 8 s (simulation.timeout_s)"
    assert lines[:4] == [
        "  attempt 0 starts",
        f"  attempt 0 is cancelled: it {late}",
        f"  attempt 0 failed: {late}",
        "  attempt 1 starts",
    ]


def test_a_simulation_that_waits_is_told_beside_whom(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    run = run_with(tmp_path, BEGIN, starting(0, 0))
    assert why(run, 1) == ["simulation 1 is waiting: 1 interrupted, 5 waiting"]


def test_an_attempt_goes_on_with_new_servers_and_launchers_and_its_excuse_is_told(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    failed = Failed(simulation=0, attempt=0, reason="was killed by SIGKILL", excuse="the server was restarted")
    run = run_with(
        tmp_path,
        BEGIN,
        records.PlanTaken(incarnation=1),
        starting(0, 0),
        records.PlanTaken(incarnation=2),
        RESUME,
        records.PlanTaken(incarnation=2),
        failed,
        Attached(token=1, simulation=0, attempt=1),
        records.LauncherLeft(exit_code=75),
    )
    assert why(run, 0)[1:] == [
        "  attempt 0 starts",
        "  attempt 0 goes on with a new server (incarnation 2)",
        "  attempt 0 is taken over by another launcher",
        "  attempt 0 failed: was killed by SIGKILL (not counted against it, for the server was restarted)",
        "  attempt 1 goes to a client that attached",
        "  attempt 1 is interrupted by the end of its launcher",
    ]


def test_the_end_of_a_launcher_is_told_once(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    left = records.LauncherLeft(exit_code=75)
    told = ["  attempt 0 starts", "  attempt 0 is interrupted by the end of its launcher"]
    assert why(run_with(tmp_path, BEGIN, starting(0, 0), left, BEGIN), 0)[1:] == told
    (tmp_path / "journal.jsonl").write_bytes(b"".join(map(records.encode, (BEGIN, starting(0, 0), BEGIN))))
    assert why(tmp_path, 0)[1:] == told


def test_a_simulation_that_a_server_has_lost_is_told_to_run_again_for_that(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    ended = records.AttemptEnded(simulation=0, attempt=0, reason="ended with exit code 0")
    lost = [BEGIN, records.PlanTaken(incarnation=1), starting(0, 0), ended, records.PlanTaken(incarnation=2)]
    run = run_with(tmp_path, *lost, starting(0, 1), records.PlanTaken(incarnation=3))
    assert why(run, 0)[1:] == [
        "  attempt 0 starts",
        "  attempt 0 is over: ended with exit code 0",
        "  attempt 1 starts: a new server lacks time steps of the last one",
        "  attempt 1 goes on with a new server (incarnation 3)",
    ]


def test_who_brought_the_job_down_is_told_to_the_others(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    excuse = "simulation 0, which shared the job, was cancelled"
    cancelled = records.AttemptCancelled(simulation=1, attempt=0, reason="was ended with its job", excuse=excuse)
    gave_up = GaveUp(simulation=0, attempts=1, reason="late", redraw=False)
    run = run_with(tmp_path, BEGIN, starting(0, 0, "/0/0"), starting(1, 0, "/0/0"), cancelled, gave_up)
    assert why(run, 1)[1:] == [
        "  attempt 0 starts, in the job of simulation 0",
        f"  attempt 0 is cancelled: it was ended with its job, for {excuse}",
    ]


def test_a_simulation_that_is_given_up_stays_so_when_its_job_has_ended(tmp_path: Path, why) -> None:  # type: ignore[no-untyped-def]
    late = "sent no new time step for 8 s"
    run = run_with(
        tmp_path,
        BEGIN,
        starting(0, 0),
        records.AttemptCancelled(simulation=0, attempt=0, reason=late, excuse=""),
        Failed(simulation=0, attempt=0, reason=late),
        GaveUp(simulation=0, attempts=1, reason=late, redraw=False),
        records.AttemptEnded(simulation=0, attempt=0, reason="was killed by SIGTERM"),
    )
    assert why(run, 0)[0] == f"simulation 0 is given_up: {late}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"damaged", "line 1 is no record of a launcher"),
        (records.with_checksum(b'{"message": "LauncherStarted"'), "it is of format 1, this version knows"),
    ],
)
def test_a_journal_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes, told: str
) -> None:
    (run_with(tmp_path) / "journal.jsonl").write_bytes(line + b"\n")
    assert main(["why", str(tmp_path), "3"]) == 1
    said = capsys.readouterr()
    assert f"{tmp_path}: its journal cannot be read: {told}" in said.err
    assert not said.out


def test_a_simulation_that_the_run_does_not_have_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", str(run_with(tmp_path)), "17"]) == 1
    assert f"{tmp_path} has no simulation 17" in capsys.readouterr().err
