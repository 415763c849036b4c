"""The user's server class is found, and what it lacks is told before anything starts."""

import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.checkpoint.random_states import random_states
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.study.composition import Composition
from stream_server.server.user.components import load_server_class, loader_name, third_argument
from tests.support.settings import settings

WHOLE = """
    def process_simulation_data(self, data, config): ...
    def training_step(self, batch, batch_idx): ...
"""


VALIDATION = ("at", "at_start", "every_batches", "every_s", "max_batches", "save_before", "sets")


def load(
    folder: Path,
    body: str,
    *,
    num_held_out: int = 0,
    has_rollouts: bool = False,
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> type:
    (folder / "mine.py").write_text(f"from stream_server import StreamServer\n\nclass Mine(StreamServer):{body}")
    config: Any = SimpleNamespace(
        study_dir=folder,
        study=SimpleNamespace(seed=0, data_seed=0, rounds=asked.get("study.rounds")),
        server=SimpleNamespace(class_="mine.py:Mine"),
        validation=SimpleNamespace(
            simulations=num_held_out,
            val_dataloader=asked.get("validation.val_dataloader"),
            rollout=SimpleNamespace() if has_rollouts else None,
            after_batches=0,
            **{name: asked.get(f"validation.{name}") for name in VALIDATION},
        ),
        checkpoint=SimpleNamespace(monitor=asked.get("checkpoint.monitor", "val/loss")),
        training=SimpleNamespace(
            model=None,
            optimizer=None,
            criterion=None,
            train_dataloader=None,
            callbacks=(),
            **{name: asked.get(f"training.{name}") for name in ("lr_scheduler", "early_stop")},
        ),
    )
    return load_server_class(config)


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))


def test_a_loader_that_may_hold_samples_back_is_refused_with_rounds(tmp_path: Path) -> None:
    body = WHOLE + "\n    def make_loader(self, samples): ...\n    def train_dataloader(self): ...\n"
    assert load(tmp_path, body)
    with pytest.raises(ConfigError, match=r"study.rounds: the loader of Mine.train_dataloader may hold samples back"):
        load(tmp_path, body, asked={"study.rounds": SimpleNamespace()})


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


ASKED: list[tuple[str, Any]] = [
    ("validation.every_batches", 10),
    ("validation.every_s", 60.0),
    ("validation.at", (5,)),
    ("validation.max_batches", 5),
    ("validation.save_before", True),
    ("checkpoint.monitor", "val/error"),
    ("training.early_stop", SimpleNamespace(monitor="val/loss")),
]


@pytest.mark.parametrize(("key", "value"), ASKED)
def test_validations_that_are_asked_for_need_something_to_validate(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{key} must be left out where nothing is validated: .* Mine has no val_dat"
    ):
        load(tmp_path, WHOLE, asked={key: value})


@pytest.mark.parametrize("num_held_out", [0, 1])
def test_one_way_to_have_it_is_enough(tmp_path: Path, num_held_out: int) -> None:
    body = VALIDATED if num_held_out else VALIDATED + "    def val_dataloader(self): ...\n"
    load(tmp_path, body, num_held_out=num_held_out, asked=dict(ASKED))


@pytest.mark.parametrize("key", ["at_start", "sets"])
def test_what_is_asked_of_the_sets_of_a_class_needs_such_sets(tmp_path: Path, key: str) -> None:
    asked = {f"validation.{key}": {"far": SimpleNamespace()}}
    with pytest.raises(ConfigError, match=rf"^validation.{key} needs Mine.val_dataloader"):
        load(tmp_path, VALIDATED, num_held_out=1, asked=asked)
    (other := tmp_path / "other").mkdir()
    assert load(other, VALIDATED + "    def val_dataloader(self): ...\n", asked=asked)
    (named := tmp_path / "named").mkdir()
    loader = SimpleNamespace(class_="mine.py:sets", args={})
    assert load(named, VALIDATED + "\ndef sets(): ...\n", asked=asked | {"validation.val_dataloader": loader})


@pytest.mark.parametrize(("loader", "name"), [(None, "Server.val_dataloader"), (1, "validation.val_dataloader")])
def test_sets_are_named_by_what_gives_them(loader: Any, name: str) -> None:
    config = SimpleNamespace(validation=SimpleNamespace(val_dataloader=loader))
    assert loader_name(type("Server", (), {"config": config})()) == name


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (lambda batch, batch_idx: None, []),
        (lambda batch, batch_idx, set_name: None, ["set_name"]),
        (lambda batch, batch_idx, set_name="": None, ["set_name"]),
        (lambda batch, batch_idx, dataloader_idx=0: None, []),
        (lambda batch, batch_idx, dataloader_idx: None, []),
        (lambda batch, valid_batch_idx, batch_idx: None, ["batch_idx"]),
        (lambda batch, batch_idx, **_: None, []),
        (lambda *arguments: None, []),
        (max, []),
    ],
)
def test_a_third_argument_is_given_where_it_has_the_name_of_one_that_there_is(method: Any, names: list[str]) -> None:
    assert third_argument(method) == names


def test_an_early_stop_by_a_value_of_the_training_needs_no_validation(tmp_path: Path) -> None:
    load(tmp_path, WHOLE, asked={"training.early_stop": SimpleNamespace(monitor="train/loss")})


VALIDATED = WHOLE + "    def validation_step(self, batch, batch_idx): ...\n"


def test_a_class_that_neither_predicts_nor_forecasts_cannot_be_rolled_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Mine must define rollout_step, which this study needs"):
        load(tmp_path, VALIDATED, num_held_out=1, has_rollouts=True)


@pytest.mark.parametrize("method", ["predict(self, batch)", "rollout_step(self, window, batch)"])
def test_a_class_that_predicts_or_forecasts_can_be_rolled_out(tmp_path: Path, method: str) -> None:
    assert load(tmp_path, f"{VALIDATED}    def {method}: ...\n", num_held_out=1, has_rollouts=True)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (
            "def validation_step(self, batch, batch_idx, name, number): ...",
            r"Mine.validation_step is called with \(batch, batch_idx\), but takes \(batch, batch_idx, name, number\)",
        ),
        (
            "def validation_step(self, batch, batch_idx, dataloader_idx): ...",
            r"write `def validation_step\(self, batch, batch_idx\)`; a third argument may be set_name, .*Melissa",
        ),
        (
            "def process_batch(self, batch): ...",
            r"Mine.process_batch is called with \(batch, config\), but takes \(batch\)",
        ),
        ("def on_validation_end(self): ...", r"Mine.on_validation_end is called with \(metrics\), but takes \(\)"),
        ("@staticmethod\n    def predict(): ...", r"Mine.predict is called with \(batch\), but takes \(\)"),
        (
            "def setup_environment(self, config, rank, local_rank): ...",
            r"takes \(self, config, rank, local_rank\): write `def setup_environment\(config, rank, local_rank\)`",
        ),
        ("def report(self, ids): ...", r"Mine.report is called with \(simulation_ids, time_steps\), but takes \(ids\)"),
    ],
)
def test_a_method_that_cannot_be_called_as_it_will_be_is_refused(tmp_path: Path, method: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(tmp_path, f"{WHOLE}    {method}\n")


@pytest.mark.parametrize(
    "method",
    [
        "def validation_step(self, batch, batch_idx, set_name): ...",
        "def validation_step(self, batch, valid_batch_idx, batch_idx): ...",
        "def validation_step(self, batch, batch_idx, dataloader_idx=0): ...",
        "def validation_step(self, *arguments): ...",
        "@staticmethod\n    def predict(batch): ...",
        "on_train_end = print",
        "@classmethod\n    def setup_environment(cls, config, rank, local_rank): ...",
        "num_threads = 2",
    ],
)
def test_a_method_that_can_be_called_is_not(tmp_path: Path, method: str) -> None:
    assert load(tmp_path, f"{WHOLE}    {method}\n")


def test_a_file_that_raises_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        load(tmp_path, "\n    x = 1 / 0\n")


def test_what_a_class_draws_for_its_model_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    """While its file is imported and in prepare_training_attributes; generators go on afterwards as if unused."""
    drawing = "\n    import random, numpy\n    drawn = [random.random(), numpy.random.random()]\n"
    drawing += (
        "    def prepare_training_attributes(self):\n"
        "        self.order = [self.random.random(), self.numpy.random.random()]\n"
    )
    found = []
    for start in range(2):
        random.seed(start)
        before = random_states()
        kind = load(tmp_path, drawing + WHOLE.removeprefix("\n"))
        sys.modules.pop("mine", None)
        server = kind(settings())
        made: Any = SimpleNamespace(server=server, ranks=SoloRanks(), config=server.config)
        with ExitStack() as stack:
            Composition.make_step(made, stack)
        found.append([*kind.drawn, *server.order])
        assert repr(random_states()) == repr(before)
    assert found[0] == found[1]
    assert found[0][0] == found[0][2]
