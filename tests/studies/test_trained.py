"""The model of a run that Python asks for, and the user's files from which it is made again."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from stream_server.server.model.best_models import BestFolder
from stream_server.studies.trained import BEST, _load_saved, user_code_of


def config(mode: str) -> Any:
    return SimpleNamespace(checkpoint=SimpleNamespace(mode=mode))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "study.json").write_text('{"checkpoint": {"dir": null}}')
    return RunFolder(tmp_path)


@pytest.mark.parametrize(("mode", "batch"), [("min", 20), ("max", 30)])
def test_the_best_of_the_best_models_is_found_beside_one_that_was_not_finished(
    mode: str, batch: int, run: RunFolder
) -> None:
    best = run.path / "checkpoints" / BEST
    for number, value in {10: 2.0, 20: 1.0, 30: 3.0}.items():
        BestFolder(best).write(number, [], {"batch": number, "value": value})
    # Without its facts, as a rank that was killed leaves it.
    (best / "batch-000040.tmp").mkdir()
    assert _load_saved(run, BEST, config(mode)).batches == batch


def test_without_best_models_it_is_said_how_to_keep_them(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"has none of the best models: set checkpoint\.keep_best"):
        _load_saved(run, BEST, config("min"))


def test_files_of_a_study_are_imported_as_they_are_now_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = list(sys.path)
    for name, file in {
        "theirs": tmp_path / "theirs.py",
        "__main__": tmp_path / "main.py",
        "other": Path("o.py"),
    }.items():
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    with user_code_of(SimpleNamespace(study_dir=tmp_path)):  # type: ignore[arg-type]
        assert {"theirs", "__main__", "other"} & {*sys.modules} == {"__main__", "other"}
        sys.path.insert(0, str(tmp_path))
    assert sys.path == path
