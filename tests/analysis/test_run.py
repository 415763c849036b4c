"""Finding the run that a user means."""

import json
from pathlib import Path

import pytest

from stream_server.analysis.reading import find_run
from stream_server.errors import ConfigError

STUDY = {
    "study": {"simulations": 2, "time_steps": 3, "fields": {"u": [4]}, "output_dir": "results"},
    "parameters": {"bounds": {"left": [0, 1]}},
    "server": {"class": "server.py:Server"},
    "buffer": {"capacity": 10},
    "training": {"batch_size": 2},
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "heat"
    folder.mkdir()
    (folder / "server.py").write_text("class Server: ...\n")
    (folder / "study.json").write_text(json.dumps(STUDY))
    return folder


def test_an_output_folder_is_its_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "heat" / "metrics").mkdir(parents=True)
    run = find_run(tmp_path / "runs" / "heat")
    assert (run.path, run.name) == (tmp_path / "runs" / "heat", "heat")


@pytest.mark.parametrize("given", ["", "study.json"])
def test_a_study_has_its_run_where_its_study_json_says(study: Path, given: str) -> None:
    (study / "results").mkdir()
    assert find_run(study / given).path == study / "results"


def test_the_study_json_in_an_output_folder_is_that_run(study: Path) -> None:
    (study / "metrics").mkdir()
    assert find_run(study / "study.json").path == study


def test_a_run_in_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_run(Path()).name == tmp_path.name


def test_a_study_that_was_never_run_says_so(study: Path) -> None:
    with pytest.raises(ConfigError, match=r"was not run yet: there is no .*results"):
        find_run(study)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*nowhere: give the output folder"):
        find_run(tmp_path / "nowhere")


def test_a_folder_without_run_or_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither metrics/ nor a study\.json"):
        find_run(tmp_path)
