"""`Study` and `Run`: a study from Python, as in a notebook."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from stream_server import Run, Study
from stream_server.analysis.live import query_status
from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError, NotRunning
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock
from tests.analysis.conftest import fonts  # noqa: F401
from tests.support.runs import MARK, NUMPY_STUDY, marked_processes
from tests.support.timing import until

LIMIT_S = 120.0
START = "import sys, json; from stream_server import Study; Study(json.loads(sys.argv[1]), sys.argv[2]).start(ranks=1)"


@pytest.fixture(autouse=True)
def all_is_ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kills what a test has started and, since it failed, not ended."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    left = marked_processes(mark)
    for process in left:
        process.kill()
    psutil.wait_procs(left)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a study, with links to the files of the NumPy study."""
    made = tmp_path / "my-study"
    made.mkdir()
    for file in NUMPY_STUDY.parent.glob("*.py"):
        (made / file.name).symlink_to(file)
    return made


def plain(**changes: Any) -> dict[str, Any]:
    """The NumPy study as a dict; keys of the changes are those of --set, with __ for the dot."""
    study: dict[str, Any] = json.loads(NUMPY_STUDY.read_text())
    for key, value in changes.items():
        section, name = key.split("__")
        study[section] = study.get(section, {}) | {name: value}
    return study


def num_running(run: Run) -> int:
    """How many simulations run; none while the server does not answer yet."""
    try:
        return list(run.simulations()["state"]).count("running")
    except NotRunning:
        return 0


@pytest.mark.full
@pytest.mark.slow
def test_a_study_outlives_the_process_that_started_it_is_stopped_and_goes_on_but_not_as_another_one(
    folder: Path,
) -> None:
    go = folder / "go"
    settings = plain(simulation__command=["python", "patient.py", str(go)], study__simulations=2)
    study = Study(settings, folder)
    subprocess.run([sys.executable, "-c", START, json.dumps(settings), str(folder)], check=True)
    run = Run.open(folder / "runs" / "ripple")
    assert run.status.is_live
    with pytest.raises(ConfigError, match="is in use: stream-launcher, process"):
        study.start()
    until(lambda: num_running(run) == 2, LIMIT_S)
    assert list(run.simulations().columns)[:3] == ["offset", "slope", "state"]
    assert run.wait(timeout_s=0).state == "running"
    assert "checkpoint" in run.stop()
    status = run.wait(LIMIT_S)
    assert (status.state, status.exit_code, status.exit_reason) == ("stopped", 75, "saved")
    assert status.log != ""

    # Rank 0 refuses to try again what was not given up; the earlier end is not taken for that of this start.
    refused = study.start(retry=[9]).wait(LIMIT_S)
    assert (refused.state, refused.exit_code) == ("failed", 2), refused
    assert "--retry 9" in refused.log

    go.touch()
    run = study.start(ranks=2)
    status = run.wait(LIMIT_S)
    assert (status.state, status.exit_code, status.exit_reason) == ("finished", 0, "finished"), status.log
    assert "2 ranks" in status._repr_html_()
    assert set(run.simulations()["state"]) == {"finished"}
    metrics = run.metrics()
    assert {"batch", "train/loss", "val/loss"} < set(metrics.columns)
    assert metrics["batch"].is_monotonic_increasing
    pictures = run.plot("loss")
    assert list(pictures) == ["loss"]
    assert pictures._repr_html_().startswith('<img alt="loss" src="data:image/png;base64,')

    with pytest.raises(ConfigError, match=r"time-limit.*is no time"):
        study.start(time_limit="soon")
    assert_a_failure_is_told(Study(plain(user__trouble="training_step", user__rank=0, study__simulations=1), folder))


def assert_a_failure_is_told(study: Study) -> None:
    """Start it in the place of one that has ended."""
    run = study.start(fresh=True)
    assert run.path.with_name("ripple.1").joinpath("report.json").exists()
    status = run.wait(LIMIT_S)
    assert (status.state, status.exit_code) == ("failed", 3)
    assert "trouble in training_step of rank 0" in status.detail
    assert "ArithmeticError" in status.log
    assert "failed" in repr(run)
    assert status.log in run.log(num_lines=1000)
    with pytest.raises(NotRunning, match="is not running: its state is failed"):
        run.stop()


def test_all_problems_of_a_dict_are_told_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)the study has 2 problems:.*buffer.capacity.*training.batch_sizes"):
        Study(plain(buffer__capacity="many", training__batch_sizes=3), folder)


def test_a_dict_may_hold_paths_and_what_numpy_gives_but_nothing_else(folder: Path) -> None:
    study = Study(plain(training__batch_size=np.int64(7), study__output_dir=Path("elsewhere")), folder)
    assert (study.config.training.batch_size, study.output_dir) == (7, folder / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be written as JSON: <object"):
        Study(plain(user__thing=object()), folder)


def test_a_file_is_loaded_with_changes_as_by_set(folder: Path) -> None:
    path = folder / "study.json"
    path.write_text(json.dumps(plain()))
    study = Study.load(path, {"training.batch_size": 9, "study.name": "other"})
    assert study.config.training.batch_size == 9
    assert study.output_dir == folder / "runs" / "other"
    assert "6 for training, 1 for validation" in study._repr_html_()
    with pytest.raises(ConfigError, match="batch_sizes"):
        Study.load(path, {"training.batch_sizes": 9})


def test_a_check_says_what_the_command_says_and_refuses_what_it_refuses(folder: Path) -> None:
    facts = dict(Study(plain(), folder).check())
    assert facts["ranks"].startswith("1, as server.ranks says")
    assert "1 rank × " in facts["cores"]
    of_two = dict(Study(plain(), folder).check(ranks=2))
    assert of_two["ranks"].startswith("2, ")
    assert "2 ranks × " in of_two["cores"]
    file = folder / "study.json"
    file.write_text(json.dumps(plain()))
    assert dict(Study.load(file).check(ranks=2))["cores"] == of_two["cores"]
    assert facts["simulations"] == "6 for training, 1 for validation"
    with pytest.raises(ConfigError, match="no-such-program"):
        Study(plain(simulation__command=["no-such-program"]), folder).check()


def test_a_check_of_a_changed_study_on_other_ranks_has_the_changes(folder: Path) -> None:
    file = folder / "study.json"
    file.write_text(json.dumps(plain()))
    facts = dict(Study.load(file, {"study.simulations": 3}).check(ranks=2))
    assert facts["simulations"] == "3 for training, 1 for validation"
    assert facts["ranks"].startswith("2, ")


def test_a_run_of_another_study_is_refused_where_it_is_to_be_started(folder: Path) -> None:
    study = Study(plain(study__seed=7), folder)
    study.output_dir.joinpath("record").mkdir(parents=True)
    before = Study(plain(), folder).config.resolved()
    (study.output_dir / "study.json").write_text(json.dumps(before))
    (study.output_dir / "report.json").write_text('{"exit_code": 0, "exit_reason": "finished"}')
    with pytest.raises(ConfigError, match=r"study\.seed: 7, but the run began with 0"):
        study.start(ranks=1)
    assert not study.file.exists()


def test_a_file_of_the_users_own_is_not_overwritten(folder: Path) -> None:
    study = Study(plain(), folder)
    study.file.write_text("{}")
    with pytest.raises(ConfigError, match=r"was not written by Study.start\(\)"):
        study.start()
    assert study.file.read_text() == "{}"


def test_there_is_no_run_where_none_was(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="there is no run in"):
        Run.open(tmp_path)


def test_a_run_whose_launcher_was_killed_is_orphaned_and_not_killed(tmp_path: Path) -> None:
    with StudyLock(tmp_path / SERVER_LOCK, "stream-server"):
        status = query_status(RunFolder(tmp_path), 0.1).after(-signal.SIGKILL, "")
    assert (status.state, status.is_live, status.exit_code) == ("orphaned", True, None)


def test_a_notebook_shows_the_status_while_it_waits_and_nothing_of_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    lock = StudyLock(tmp_path / RUN_LOCK, "stream-launcher")

    class Handle:
        def display(self, data: object, *, raw: bool) -> None:
            shown.append(data)

        def update(self, data: object, *, raw: bool = False) -> None:
            shown.append(data)
            if len(shown) == 3:
                lock.__exit__(None, None, None)

    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    monkeypatch.setattr("stream_server.studies.run.SHOWN_S", 0.05)
    monkeypatch.setattr("stream_server.studies.run.SHOW_EVERY_S", 0.0)
    lock.__enter__()
    assert not Run(tmp_path).wait(LIMIT_S).is_live
    first, *statuses, last = shown
    assert first == last == {}
    assert [getattr(it, "state", None) for it in statuses] == ["starting", "starting"]


def test_importing_the_package_loads_neither_pandas_nor_torch() -> None:
    code = "import sys, stream_server as s; s.__all__; print(*{'torch', 'pandas', 'pydantic'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
