"""docs/guide/training.md names a setting's test, which is there, and leaves no setting of the training out."""

import re
from pathlib import Path

import pytest

from stream_server.config.training_sections import (
    Checkpoint,
    EarlyStop,
    Load,
    NormalizationSettings,
    TrainingSettings,
    ValidationSettings,
)
from stream_server.config.values import Section

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "training.md").read_text()
TABLE = PAGE[PAGE.index("## Every setting") :]
NAMED = sorted(set(re.findall(r"`(tests/[^`]+\.py)(?:::(\w+))?`", TABLE)))
SECTIONS: list[tuple[str, type[Section], set[str]]] = [
    ("training", TrainingSettings, set()),
    ("training.early_stop", EarlyStop, set()),
    ("validation", ValidationSettings, {"simulations"}),
    # The others are about restarts.
    ("checkpoint", Checkpoint, {"every_s", "keep", "dir", "record", "allow_pickle"}),
    ("load", Load, set()),
    ("normalization", NormalizationSettings, set()),
]


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_the_test_that_a_row_names_is_there(path: str, test: str) -> None:
    assert f"def {test}(" in (ROOT / path).read_text() if test else (ROOT / path).is_file()


@pytest.mark.parametrize(("section", "model", "others"), SECTIONS, ids=[name for name, _, _ in SECTIONS])
def test_every_setting_has_a_row(section: str, model: type[Section], others: set[str]) -> None:
    settings = [row.split("|")[1] for row in TABLE.splitlines() if row.startswith("|") and section in row.split("|")[1]]
    named = set(re.findall(r"`(?:[\w.]+\.)?(\w+)`", " ".join(settings)))
    assert set(model.model_fields) - others <= named
