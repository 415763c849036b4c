"""The trained model: its folder has all of a model, and is there once one was exported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from stream_server.server.model.model_export import (
    MODEL_FILE,
    NORMALIZATION_FILE,
    README_FILE,
    STUDY_FILE,
    export_model,
)
from stream_server.storage.tensor_file import read_tensors
from tests.faults.disk.scenarios.scenario import Tell

FOLDER = "run/model"
FILES = {MODEL_FILE, NORMALIZATION_FILE, README_FILE, STUDY_FILE}
STATISTICS = SimpleNamespace(arrays=lambda: {"mean": np.zeros(3)}, num_samples=1, frozen=False)
CONFIG: Any = SimpleNamespace(resolved=lambda: {"study": "s"}, study=SimpleNamespace(name="s"))


@dataclass(frozen=True, slots=True)
class Exporting:
    """This model is about to be written; the one before it may be gone for as long."""

    number: int


@dataclass(frozen=True, slots=True)
class Exported:
    """It is there."""

    number: int


@dataclass(frozen=True, slots=True)
class Exports:
    """A model is exported, and another one in its place."""

    name: str = "exported models"

    def prepare(self, folder: Path) -> Sequence[object]:
        (folder / "run").mkdir()
        return []

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        export(folder, 1, tell)
        export(folder, 2, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        number = read(folder)
        assert number in _allowed(told), f"model {number} is there, and not one of {_allowed(told)}"
        if number:
            tell(Exported(number))
        export(folder, number + 3, tell)
        assert read(folder) == number + 3
        assert [path.name for path in (folder / "run").iterdir()] == ["model"]


def export(folder: Path, number: int, tell: Tell) -> None:
    """Export a model whose weights are its number."""
    tell(Exporting(number))
    tensors = {"weights": np.full(200, number)}
    statistics: Any = STATISTICS
    export_model(folder / FOLDER, tensors, owner="Server", config=CONFIG, normalization=statistics)
    tell(Exported(number))


def read(folder: Path) -> int:
    """The number of the model that is there, which is whole; 0 for none."""
    model = folder / FOLDER
    if not model.exists():
        return 0
    assert {path.name for path in model.iterdir() if path.stat().st_size} >= FILES
    read_tensors(model / NORMALIZATION_FILE, as_torch=False)
    weights = read_tensors(model / MODEL_FILE, as_torch=False)["weights"]
    assert len(weights) == 200
    assert len(set(weights.tolist())) == 1
    return int(weights[0])


def _allowed(told: Sequence[object]) -> set[int]:
    allowed = {0}
    for fact in told:
        match fact:
            case Exporting(number=number):
                allowed |= {0, number}
            case Exported(number=number):
                allowed = {number}
    return allowed
