"""The output folder of a study."""

import json
from pathlib import Path
from typing import Any

import pytest

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.server.run.output import OutputFolder, require_given_up
from tests.support.studies import Changes, StudyFolder


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(tmp_path / "runs" / "heat")


def config(study: StudyFolder, changes: Changes | None = None) -> StudyConfig:
    return study.load({"study.output_dir": str(study.path.parent / "runs" / "heat"), **(changes or {})})


def prepare(folder: OutputFolder, config: StudyConfig, *, fresh: bool = False, resume: bool = False) -> None:
    if fresh:
        folder.set_aside()
    folder.prepare(config, resume=resume)


def test_an_absent_folder_is_made_with_the_resolved_study_in_it(study: StudyFolder, folder: OutputFolder) -> None:
    prepare(folder, config(study))
    assert json.loads(folder.study.read_text()) == config(study).resolved()


@pytest.mark.parametrize("resume", [False, True])
def test_an_unfinished_run_is_continued(study: StudyFolder, folder: OutputFolder, *, resume: bool) -> None:
    prepare(folder, config(study))
    (folder.path / "mark").touch()
    prepare(folder, config(study), resume=resume)
    assert (folder.path / "mark").exists()
    assert [path.name for path in folder.path.parent.iterdir()] == ["heat"]


def test_a_run_is_continued_as_the_study_says_now(study: StudyFolder, folder: OutputFolder) -> None:
    prepare(folder, config(study))
    prepare(folder, config(study, {"launcher.max_running": 3}))
    assert json.loads(folder.study.read_text())["launcher"]["max_running"] == 3


def test_what_the_last_run_said_of_its_end_is_gone_when_it_is_continued(
    study: StudyFolder, folder: OutputFolder
) -> None:
    prepare(folder, config(study))
    for file in (folder.report, folder.exit):
        file.write_text("{}")
    prepare(folder, config(study))
    assert not folder.report.exists()
    assert not folder.exit.exists()


@pytest.mark.parametrize(
    "left", ["simulations/000000", "connection.json", "checkpoints/000001", "record", "metrics/metrics.jsonl"]
)
def test_a_study_that_has_changed_is_not_continued_and_both_values_are_told(
    study: StudyFolder, folder: OutputFolder, left: str
) -> None:
    prepare(folder, config(study))
    (folder.path / left).parent.mkdir(exist_ok=True)
    (folder.path / left).write_text("something came of it")
    folder.exit.write_text("why it failed")
    before = folder.study.read_bytes()
    with pytest.raises(ConfigError, match=r"study\.seed: 7, but the run began with 0"):
        prepare(folder, config(study, {"study.seed": 7}))
    assert folder.study.read_bytes() == before
    assert folder.exit.read_text() == "why it failed"


def test_a_start_that_failed_while_it_was_set_up_binds_nobody(study: StudyFolder, folder: OutputFolder) -> None:
    prepare(folder, config(study))
    for name in ("logs/server-0.log", "metrics/metrics.jsonl", "checkpoints/incarnations.json", "exit.json"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).touch()
    prepare(folder, config(study, {"buffer.capacity": 2501}))
    assert json.loads(folder.study.read_text())["buffer"]["capacity"] == 2501


@pytest.mark.parametrize("text", ["{", "", "[1"])
def test_a_study_that_cannot_be_read_is_not_continued(study: StudyFolder, folder: OutputFolder, text: str) -> None:
    prepare(folder, config(study))
    folder.study.write_text(text)
    with pytest.raises(ConfigError, match=r"study\.json, from which a run would be continued, cannot be read"):
        prepare(folder, config(study))
    prepare(folder, config(study), fresh=True)


def test_resume_insists_on_a_run(study: StudyFolder, folder: OutputFolder) -> None:
    with pytest.raises(ConfigError, match="--resume was given, but there is no run in"):
        prepare(folder, config(study), resume=True)
    assert not folder.path.exists()


def test_resume_does_not_take_a_launchers_journal_for_a_run(study: StudyFolder, folder: OutputFolder) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "journal.jsonl").touch()
    with pytest.raises(ConfigError, match="there is no run"):
        prepare(folder, config(study), resume=True)


@pytest.mark.parametrize(
    "names", [[], ["journal.jsonl"], ["logs"], ["journal.jsonl", "logs"], ["run.lock", "server.lock"]]
)
def test_a_run_begins_in_a_folder_with_nothing_but_what_a_launcher_makes(
    study: StudyFolder, folder: OutputFolder, names: list[str]
) -> None:
    folder.path.mkdir(parents=True)
    for name in names:
        (folder.path / name).touch()
    prepare(folder, config(study))
    assert {path.name for path in folder.path.iterdir()} == {*names, "study.json"}


@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "checkpoints", "report.json"])
def test_a_folder_with_anything_else_in_it_is_left_as_it_is(
    study: StudyFolder, folder: OutputFolder, name: str
) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty, but holds no run .* write another study\.output_dir"):
        prepare(folder, config(study))
    assert [(path.name, path.read_text()) for path in folder.path.iterdir()] == [(name, "mine")]


def test_fresh_keeps_every_earlier_run_under_another_name(study: StudyFolder, folder: OutputFolder) -> None:
    for run in range(3):
        prepare(folder, config(study, {"training.batch_size": 10 + run}), fresh=True)
        (folder.path / "mark").write_text(str(run))
    marks = [(folder.path.parent / name / "mark").read_text() for name in ("heat.1", "heat.2", "heat")]
    assert marks == ["0", "1", "2"]


def test_fresh_begins_in_a_folder_that_is_not_there_or_empty(study: StudyFolder, folder: OutputFolder) -> None:
    folder.path.mkdir(parents=True)
    prepare(folder, config(study), fresh=True)
    assert [path.name for path in folder.path.parent.iterdir()] == ["heat"]


@pytest.mark.parametrize(
    ("report", "finished"),
    [
        ('{"exit_code": 0, "exit_reason": "finished"}', True),
        ('{"exit_code": 0, "exit_reason": "max_batches"}', True),
        ('{"exit_code": 0, "exit_reason": "early_stop"}', True),
        ('{"exit_code": 75, "exit_reason": "saved"}', False),
        ('{"exit_code": 7, "exit_reason": "failed"}', False),
        ("{", False),
        ("[]", False),
    ],
)
def test_a_folder_is_finished_when_its_report_says_so(tmp_path: Path, report: str, *, finished: bool) -> None:
    (tmp_path / "report.json").write_text(report)
    (tmp_path / "study.json").write_text(json.dumps(resolved()))
    assert OutputFolder(tmp_path).is_finished(resolved()) is finished


def resolved(num_simulations: int = 3, **limits: object) -> dict[str, Any]:
    """What `is_finished` reads of a resolved study."""
    training = {"max_batches": 10, "max_s": None, "early_stop": None} | limits
    return {"study": {"simulations": num_simulations}, "training": training}


@pytest.mark.parametrize("reason", ["finished", "early_stop"])
@pytest.mark.parametrize(("num_simulations", "finished"), [(2, True), (3, True), (4, False)])
def test_a_folder_is_not_finished_if_more_simulations_are_asked_for(
    tmp_path: Path, reason: str, num_simulations: int, *, finished: bool
) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"exit_code": 0, "exit_reason": reason}))
    (tmp_path / "study.json").write_text(json.dumps(resolved()))
    assert OutputFolder(tmp_path).is_finished(resolved(num_simulations)) is finished


@pytest.mark.parametrize(("reason", "finished"), [("finished", True), ("early_stop", False), ("max_batches", False)])
@pytest.mark.parametrize("limits", [{"max_batches": 20}, {"max_s": 5.0}, {"early_stop": {"patience": 3}}])
def test_one_that_ended_early_is_not_finished_if_a_limit_has_changed(
    tmp_path: Path, reason: str, limits: dict[str, object], *, finished: bool
) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"exit_code": 0, "exit_reason": reason}))
    (tmp_path / "study.json").write_text(json.dumps(resolved()))
    assert OutputFolder(tmp_path).is_finished(resolved(**limits)) is finished


def test_a_folder_without_a_report_is_not_finished(tmp_path: Path) -> None:
    assert not OutputFolder(tmp_path / "nowhere").is_finished(resolved())


def test_each_result_that_is_there_has_the_command_that_shows_it(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.places(has_held_out=True) == []
    (folder.path / "logs").mkdir(parents=True)
    folder.model.mkdir()
    folder.report.touch()
    (folder.metrics / "tensorboard").mkdir(parents=True)
    (folder.metrics / "metrics.jsonl").touch()
    monkeypatch.chdir(folder.path.parent.parent)
    assert folder.places(has_held_out=True) == [
        ("model", "stream-server --config runs/heat/study.json --evaluate runs/heat"),
        ("page", "stream-study serve runs/heat"),
        ("logs", "less runs/heat/logs/*.log"),
        ("report", "less runs/heat/report.json"),
    ]
    (folder.metrics / "metrics.jsonl").write_text("{}\n")
    assert folder.places(has_held_out=True)[2:4] == [
        ("pictures", "stream-study plot runs/heat"),
        ("curves", "tensorboard --logdir runs/heat/metrics/tensorboard"),
    ]
    assert folder.places(has_held_out=False)[0] == ("model", "less runs/heat/model/README.txt")


def test_only_simulations_that_were_given_up_are_tried_again() -> None:
    require_given_up([5, 3], {3, 5, 7})
    require_given_up([], set())
    with pytest.raises(ConfigError, match=r"^--retry 4 6: expected simulations .*, which are: 3, 5$"):
        require_given_up([4, 5, 6], {5, 3})
    with pytest.raises(ConfigError, match=r"which are: none$"):
        require_given_up([0], set())
