"""`Run` and `Study.start`, without a launcher: what they say of a run, and what they refuse or wait for."""

import json
import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server import Run, Study
from stream_server.errors import ConfigError, NotRunning
from stream_server.machine.study_lock import RUN_LOCK, StudyLock
from stream_server.studies.run import console_of
from tests.support.runs import NUMPY_STUDY


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run that was killed before it had saved anything."""
    folder = tmp_path / "runs" / "heat"
    (folder / "logs").mkdir(parents=True)
    (folder / "study.json").write_text('{"checkpoint": {"dir": null}}')
    (folder / RUN_LOCK).touch()
    return folder


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of which `start` starts nothing; `_launch` notes its options."""
    options: list[str] = []
    monkeypatch.setattr(Study, "_launch", lambda _, given: options.extend(given))
    monkeypatch.setattr(Study, "_await_beginning", lambda *_: None)
    folder = tmp_path / "my-study"
    folder.mkdir()
    for file in NUMPY_STUDY.parent.glob("*.py"):
        (folder / file.name).symlink_to(file)
    made = Study(json.loads(NUMPY_STUDY.read_text()), folder)
    monkeypatch.setattr(made, "options", options, raising=False)
    return made


def process(pid: int, *ends: int | None) -> Any:
    """A launcher that ends with these exit codes as it is waited for; None for not yet."""
    codes = iter(ends)

    def wait(timeout_s: float) -> int:
        if (code := next(codes)) is None:
            raise subprocess.TimeoutExpired("launcher", timeout_s)
        return code

    return SimpleNamespace(pid=pid, wait=wait)


def test_a_run_that_was_killed_has_a_status_and_is_not_waited_for(killed: Path) -> None:
    run = Run.open(killed)
    assert (run.status.state, run.status.is_live) == ("killed", False)
    assert run.wait(100).state == "killed"


def test_a_run_that_goes_on_is_waited_for_as_long_as_asked(killed: Path) -> None:
    with StudyLock(killed / RUN_LOCK, "stream-launcher"):
        assert Run(killed).wait(0.01).is_live


def test_a_wait_shows_the_status_once_a_second_however_often_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("stream_server.studies.run.changeable_output", lambda: nullcontext(shown.append))
    monkeypatch.setattr("stream_server.studies.run.SHOW_EVERY_S", 3600.0)
    monkeypatch.setattr(Run, "_status", lambda *_: "running")
    launcher, codes = process(1, *[None] * 5), iter([*[None] * 5, 0])
    launcher.poll = lambda: next(codes)
    Run(tmp_path, launcher).wait()
    assert shown == ["running"]


def test_the_log_of_a_run_is_what_was_written_last_by_launcher_or_rank_0(killed: Path) -> None:
    run = Run.open(killed)
    with pytest.raises(NotRunning, match="there is no log in"):
        run.log()
    with pytest.raises(NotRunning, match="there is no output of simulation 3"):
        run.log(3)
    assert run.status.log == ""
    for when, (name, text) in enumerate(
        [("server-0", "rank 0\n"), ("launcher", "launcher\n"), ("server-1", "rank 1\n")]
    ):
        file = killed / "logs" / f"{name}.log"
        file.write_text(text)
        os.utime(file, (when, when))
    assert run.log().strip() == "launcher"
    console_of(killed).write_text("first\nconsole\n")
    assert run.log(num_lines=1).strip() == "console"


def test_a_study_that_runs_is_not_started_again(study: Study) -> None:
    study.output_dir.mkdir(parents=True)
    with StudyLock(study.output_dir / RUN_LOCK, "stream-launcher"), pytest.raises(ConfigError, match="is in use"):
        study.start()


def test_a_start_hands_its_options_to_the_launcher(study: Study) -> None:
    study.start(ranks=2, retry=[3, 4], time_limit="01:00:00")
    options = ["--set=server.ranks=2", "--time-limit=01:00:00", "--retry", "3", "4"]
    assert study.options == options  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="drop it, or fresh"):
        study.start(fresh=True, retry=[])


def test_a_fresh_start_keeps_the_earlier_run_under_another_name(study: Study) -> None:
    study.output_dir.mkdir(parents=True, mode=0o700)
    (study.output_dir / "study.json").write_text("{}")
    study.start(fresh=True)
    assert not (study.output_dir / "study.json").exists()
    assert study.output_dir.with_name(f"{study.output_dir.name}.1").joinpath("study.json").read_text() == "{}"


def test_a_start_returns_once_its_own_launcher_has_the_lock(tmp_path: Path) -> None:
    study = SimpleNamespace(output_dir=tmp_path)
    with StudyLock(tmp_path / RUN_LOCK, "stream-launcher"):
        Study._await_beginning(study, process(os.getpid()))
        Study._await_beginning(study, process(os.getpid() + 1, None, None, 0))
    Study._await_beginning(study, process(os.getpid(), None, 0))


def test_a_start_that_the_launcher_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    folder = tmp_path / "heat"
    console_of(folder).write_text("there is no mpirun\n")
    with pytest.raises(ConfigError, match=r"^there is no mpirun$"):
        Study._await_beginning(SimpleNamespace(output_dir=folder), process(1, None, ConfigError.exit_code))


def test_what_is_no_json_is_refused_in_words(tmp_path: Path) -> None:
    circle: dict[str, Any] = {}
    circle["user"] = circle
    for value in (circle, {"user": {"lr": float("nan")}}):
        with pytest.raises(ConfigError, match="cannot be written as JSON"):
            Study(value, tmp_path)
