"""The classes that docs/guide/steering.md shows suggest points that are taken, and learn."""

import random
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stream_server.config.parameters import Bounds
from stream_server.samplers.generator import PointGenerator
from tests.docs.blocks import blocks

BOUNDS = {name: Bounds.model_validate([0, 1]) for name in ("x", "y")}


def generator(folder: Path, name: str, attribute: str, **args: Any) -> PointGenerator:
    """The class of a block of the page."""
    [code] = [it.code for it in blocks("python") if it.page.endswith("steering.md") and f"class {attribute}" in it.code]
    (folder / name).write_text(code)
    return PointGenerator(f"{folder / name}:{attribute}", args, BOUNDS, 3, folder=folder)


class AskAndTell:
    """As much of an Optuna study as the adapter of the page uses: random points."""

    def __init__(self, **_: Any) -> None:
        self.told: list[Any] = []

    def ask(self, distributions: dict[str, tuple[float, float]]) -> Any:
        return SimpleNamespace(params={name: random.uniform(*ends) for name, ends in distributions.items()})

    def add_trial(self, trial: Any) -> None:
        self.told.append(trial)


@pytest.fixture
def optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna, or, where it is not installed, a stand-in."""
    if find_spec("optuna"):
        return
    module = ModuleType("optuna")
    module.create_study = AskAndTell  # type: ignore[attr-defined]
    module.samplers = SimpleNamespace(TPESampler=lambda seed: None)  # type: ignore[attr-defined]
    module.distributions = SimpleNamespace(FloatDistribution=lambda *ends: ends)  # type: ignore[attr-defined]
    module.trial = SimpleNamespace(create_trial=lambda **values: SimpleNamespace(**values))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optuna", module)


def test_the_class_of_the_page_suggests_points(tmp_path: Path) -> None:
    it = generator(tmp_path, "points_of_the_page.py", "Points", spread=0.3)
    assert it.learns
    suggested = it.suggest(50)
    assert (len(suggested.points), suggested.problem) == (50, "")
    it.ingest([{"x": 0.5, "y": 0.5, "loss": 1.0}])


@pytest.mark.usefixtures("optuna")
def test_the_adapter_for_optuna_asks_and_tells_each_result_once(tmp_path: Path) -> None:
    it = generator(tmp_path, "by_optuna.py", "ByOptuna")
    first = it.suggest(3)
    assert (len(first.points), first.problem) == (3, "")
    rows = [{**dict(zip("xy", point.values, strict=True)), "loss": 1.0, "failed": 0.0} for point in first.points]
    it.ingest([*rows, {"x": 0.1, "y": 0.1, "loss": float("nan"), "failed": 1.0}])
    it.ingest(rows)
    study = it._source.study
    told = study.told if isinstance(study, AskAndTell) else study.trials[-3:]
    assert [trial.params for trial in told] == [{name: row[name] for name in "xy"} for row in rows]
    assert it.suggest(2).problem == ""


def test_an_id_of_the_class_comes_back_with_the_result(tmp_path: Path) -> None:
    code = (
        "class Points:\n"
        "    def __init__(self): self.told = []\n"
        "    def suggest(self, num): return [{'x': 0.5, 'y': i / 9, '_id': i} for i in range(num)]\n"
        "    def ingest(self, results): self.told += results\n"
    )
    (tmp_path / "with_ids.py").write_text(code)
    it = PointGenerator(f"{tmp_path / 'with_ids.py'}:Points", {}, BOUNDS, 3, folder=tmp_path)
    it.suggest(3)
    it.ingest([{"x": 0.5, "y": 2 / 9, "loss": 1.0}, {"x": 0.1, "y": 0.2, "loss": 1.0}])
    assert [row.get("_id") for row in it._source.told] == [2, None]
