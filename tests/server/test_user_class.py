"""The user's server class is found, and what it lacks is told before anything starts."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.user.components import load_server_class

WHOLE = """
    def process_simulation_data(self, data, config): ...
    def training_step(self, batch, batch_idx): ...
"""


def load(folder: Path, body: str, *, num_held_out: int = 0, has_rollouts: bool = False) -> type:
    (folder / "mine.py").write_text(f"from stream_server import StreamServer\n\nclass Mine(StreamServer):{body}")
    config: Any = SimpleNamespace(
        study_dir=folder,
        server=SimpleNamespace(class_="mine.py:Mine"),
        validation=SimpleNamespace(simulations=num_held_out, rollout=SimpleNamespace() if has_rollouts else None),
        training=SimpleNamespace(model=None, optimizer=None, lr_scheduler=None, callbacks=()),
    )
    return load_server_class(config)


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))


def test_a_whole_class_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE).__name__ == "Mine"


def test_process_batch_stands_in_for_process_simulation_data(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE.replace("process_simulation_data(self, data", "process_batch(self, batch"))


@pytest.mark.parametrize(
    ("body", "num_held_out", "missing"),
    [
        ("\n    pass\n", 0, "process_simulation_data and training_step"),
        (WHOLE, 1, "validation_step"),
        (WHOLE + "    def val_dataloader(self): ...\n", 0, "validation_step"),
    ],
)
def test_missing_methods_are_named(tmp_path: Path, body: str, num_held_out: int, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"Mine must define {missing}, which this study needs"):
        load(tmp_path, body, num_held_out=num_held_out)


VALIDATED = WHOLE + "    def validation_step(self, batch, batch_idx): ...\n"


def test_a_class_that_neither_predicts_nor_forecasts_cannot_be_rolled_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Mine must define rollout_step, which this study needs"):
        load(tmp_path, VALIDATED, num_held_out=1, has_rollouts=True)


@pytest.mark.parametrize("method", ["predict(self, batch)", "rollout_step(self, window, batch)"])
def test_a_class_that_predicts_or_forecasts_can_be_rolled_out(tmp_path: Path, method: str) -> None:
    assert load(tmp_path, f"{VALIDATED}    def {method}: ...\n", num_held_out=1, has_rollouts=True)


def test_a_file_that_raises_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        load(tmp_path, "\n    x = 1 / 0\n")
