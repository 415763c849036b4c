"""A study that is started while it runs: the second start leaves, and the first does not notice."""

import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from stream_server.analysis.live import query_status
from stream_server.analysis.reading import RunFolder
from stream_server.machine.study_lock import RUN_LOCK, holder_of
from tests.support.failpoints import failpoints
from tests.support.killing import contents
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_here, run_study

Start = Callable[..., AbstractContextManager[LiveRun]]

BY_HAND: dict[str, Any] = {"mpi": None}
SUPERVISED: dict[str, Any] = {"program": "stream-launcher", "mpi": None}
PROGRAMS: dict[str, dict[str, Any]] = {"stream-server": {}, "stream-launcher": SUPERVISED}
SETTINGS: dict[str, Any] = {"study.simulations": 2}
ANSWER_S = 60.0


def start_second(first: LiveRun, **options: Any) -> Run:
    """Start the study once more, which must leave the folder as it is, and say who is in it."""
    watched = ("checkpoints", "study.json", "connection.json", "run.lock")
    before = {name: file for name, file in contents(first.output_dir).items() if name.startswith(watched)}
    start_again = run_study if "program" in options else run_here
    second = start_again(NUMPY_STUDY, first.output_dir, **options)
    assert second.exit_code == 2, second.output
    after = {name: file for name, file in contents(first.output_dir).items() if name.startswith(watched)}
    assert before == after
    assert first.process.poll() is None, "the second has waited for the first"
    return second


def holder(program: str, pid: int) -> str:
    return f"is in use: {program}, process {pid} on {socket.gethostname()}, since "


@pytest.mark.parametrize(
    "point", ["server.before_announcement", pytest.param("server.before_end", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("second", ["stream-server", pytest.param("stream-launcher", marks=pytest.mark.full)])
def test_a_study_that_runs_by_hand_is_not_started_again(start: Start, tmp_path: Path, point: str, second: str) -> None:
    waits = failpoints(tmp_path / "met", f"{point}=stop")
    with start(**BY_HAND, settings=SETTINGS, environment=waits) as first:
        first.wait_until((tmp_path / "met" / point).exists)
        said = start_second(first, **PROGRAMS[second], settings=SETTINGS).output
        (rank,) = first.ranks
        assert holder("stream-server", rank.pid) in said
        rank.send_signal(signal.SIGCONT)
        done = first.end()
    assert_complete(done, num_simulations=2)
    assert done.report["restarts"] == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("second", "arguments"),
    [
        ("stream-server", ["--fresh"]),
        ("stream-launcher", []),
        ("stream-server", []),
        ("stream-launcher", ["--fresh"]),
    ],
    ids=["server fresh", "launcher", "server", "launcher fresh"],
)
def test_a_study_that_a_launcher_runs_is_not_started_again(
    start: Start, tmp_path: Path, second: str, arguments: list[str]
) -> None:
    go = tmp_path / "go"
    settings = SETTINGS | {"simulation.command": ["python", "patient.py", str(go)]}
    with start(**SUPERVISED, settings=settings) as first:
        first.wait_until(lambda: "waiting" in first.log(0))
        said = start_second(first, **PROGRAMS[second], settings=settings, arguments=arguments).output
        assert holder("stream-launcher", first.process.pid) in said
        go.touch()
        assert_complete(first.end(), num_simulations=2)


@pytest.mark.full
def test_fresh_does_not_take_the_folder_from_under_a_study_that_runs(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = SETTINGS | {"simulation.command": ["python", "patient.py", str(go)]}
    earlier = tmp_path / "run"
    earlier.mkdir(mode=0o700)
    (earlier / "study.json").write_text("{}")
    with start(**BY_HAND, settings=settings, arguments=["--fresh"]) as first:
        first.wait_until(lambda: "waiting" in first.log(0))
        assert holder_of(first.output_dir / RUN_LOCK) is not None
        assert holder_of(tmp_path / "run.1" / RUN_LOCK) is None, "the run that was set aside looks alive"
        said = start_second(first, settings=settings, arguments=["--fresh"]).output
        assert holder("stream-server", first.ranks[0].pid) in said
        go.touch()
        assert_complete(first.end(), num_simulations=2)


def test_a_server_whose_launcher_was_killed_is_not_joined_by_one_started_by_hand(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = SETTINGS | {"simulation.command": ["python", "patient.py", str(go)]}
    with start(**SUPERVISED, settings=settings) as first:
        first.wait_until(lambda: "waiting" in first.log(0))
        first.process.kill()
        first.process.wait()
        (server,) = first.ranks
        status = query_status(RunFolder(first.output_dir), ANSWER_S)
        assert (status.state, status.server and status.server.ranks) == ("orphaned", 1)
        second = run_here(NUMPY_STUDY, first.output_dir, settings=settings)
        assert second.exit_code == 2, second.output
        assert holder("stream-server", server.pid) in second.output
        with start(**SUPERVISED, settings=settings, mark=first.mark) as live:
            live.wait_until(lambda: "is taken over" in live.launcher_log)
            go.touch()
            done = live.end()
    assert_complete(done, num_simulations=2)
    assert done.report["restarts"] == 0


def test_two_studies_do_not_share_a_folder_of_checkpoints(start: Start, tmp_path: Path) -> None:
    go, shared = tmp_path / "go", {"checkpoint.dir": str(tmp_path / "checkpoints")}
    settings = SETTINGS | shared | {"simulation.command": ["python", "patient.py", str(go)]}
    with start(**BY_HAND, settings=settings) as first:
        first.wait_until(lambda: "waiting" in first.log(0))
        second = run_here(NUMPY_STUDY, tmp_path / "other", settings=settings)
        assert second.exit_code == 2, second.output
        assert str(tmp_path / "checkpoints") + " " + holder("stream-server", first.ranks[0].pid) in second.output
        go.touch()
        assert_complete(first.end(), num_simulations=2)
