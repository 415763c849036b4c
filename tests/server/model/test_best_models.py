"""The best models are on disk, as many as study.json asks for, and stay there over a restart."""

import json
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.config.training_sections import Checkpoint
from stream_server.errors import ConfigError, DamagedCheckpoint, OtherFormat
from stream_server.server.model.best_models import BestModels, read_facts
from stream_server.storage.checksums import checksummed_json
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import from_bytes, read_state, to_bytes, write_state
from tests.server.training.validation.validating import at


class Step:
    """Counts how often the ranks made their model the same."""

    def __init__(self) -> None:
        self.num_united = 0

    def synchronize(self) -> None:
        self.num_united += 1

    def lending(self) -> AbstractContextManager[None]:
        return nullcontext()


class Study:
    """A training whose model is the number of its batch."""

    def __init__(self, folder: Path, *, rank: int = 0, **settings: Any) -> None:
        self.server = SimpleNamespace(rank=rank, progress=at(0))
        self.step: Any = Step()
        self.folder = folder / "best"
        self.is_outdated = False
        self.models = BestModels(
            self.folder,
            self.step,
            Checkpoint(**settings),
            capture=self.capture,
            is_outdated=lambda: self.is_outdated,
        )

    def capture(self) -> list[PendingFile]:
        batch = self.server.progress.batches
        return [PendingFile(path="model/model.state", write=lambda file: write_state(file, {"batch": batch}))]

    def validate(self, losses: dict[int, float]) -> None:
        for batch, loss in losses.items():
            self.server.progress.batches = batch
            self.models.on_validation_end(self.server, {"loss": loss, "accuracy": -loss})

    @property
    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []

    def restarted(self, **settings: Any) -> "Study":
        """The study after a restart from what is saved now."""
        other = Study(self.folder.parent, **settings)
        other.models.load_state_dict(from_bytes(to_bytes(self.models.state_dict())))
        return other


def test_the_best_models_are_kept_and_the_others_go(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=2)
    study.validate({10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0})
    assert study.on_disk == ["batch-000020", "batch-000030"]
    assert [(it["batch"], it["value"], it["folder"]) for it in study.models.best] == [
        (20, 1.0, "batch-000020"),
        (30, 2.0, "batch-000030"),
    ]
    assert read_state(study.folder / "batch-000020/model/model.state") == {"batch": 20}


def test_a_server_that_another_has_replaced_leaves_the_models_of_that_one(tmp_path: Path) -> None:
    old, new = Study(tmp_path), Study(tmp_path)
    old.validate({10: 3.0})
    new.validate({10: 3.0, 20: 2.0})
    old.is_outdated = True
    old.validate({30: 1.0})
    assert new.on_disk == ["batch-000020"]


def test_of_equal_ones_the_earlier_stays(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.validate({10: 1.0, 20: 1.0})
    assert study.on_disk == ["batch-000010"]


def test_the_monitored_value_may_be_another_one_that_is_to_grow(tmp_path: Path) -> None:
    study = Study(tmp_path, monitor="val/accuracy", mode="max")
    study.validate({10: 3.0, 20: 1.0, 30: 2.0})
    assert study.on_disk == ["batch-000020"]


def test_a_value_that_is_not_finite_is_never_among_the_best(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=3)
    study.validate({10: math.nan, 20: math.inf, 30: 1.0})
    assert study.on_disk == ["batch-000030"]


@pytest.mark.parametrize("monitor", ["val/error", "train/loss"])
def test_a_value_that_no_validation_gives_is_refused_with_the_names_that_there_are(
    monitor: str, tmp_path: Path
) -> None:
    study = Study(tmp_path, monitor=monitor)
    message = f'checkpoint.monitor must name .*, but is "{monitor}"; there is "val/loss", "val/accuracy"'
    with pytest.raises(ConfigError, match=message):
        study.validate({10: 1.0})


def test_a_value_of_the_rollouts_may_be_missing_while_there_are_none(tmp_path: Path) -> None:
    study = Study(tmp_path, monitor="val/rollout/u")
    study.validate({10: 1.0})
    assert study.on_disk == []
    with pytest.raises(ConfigError, match=r"checkpoint\.monitor must name"):
        study.models.on_validation_end(study.server, {"loss": 1.0, "rollout/v": 1.0})
    study.models.on_validation_end(study.server, {"loss": 1.0, "rollout/u": 2.0})
    assert study.on_disk == ["batch-000010"]


def test_a_value_that_is_known_at_the_end_alone_is_told(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.server.progress.batches = 10
    study.models.on_validation_end(study.server, {"far/loss": 1.0})
    study.validate({20: 1.0})
    study.models.on_train_end(study.server)
    [told] = study.models.warnings
    assert told.startswith("checkpoint.monitor: no val/loss in 1 validation, each of some sets alone.")


def test_every_rank_unites_the_model_and_only_the_first_writes(tmp_path: Path) -> None:
    study = Study(tmp_path, rank=1)
    study.validate({10: 2.0, 20: 3.0})
    assert (study.step.num_united, study.on_disk) == (2, [])


def test_a_model_of_another_format_is_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes(checksummed_json({"format": 1, "batch": 10, "files": {}}))
    with pytest.raises(OtherFormat, match="has format 1, and this release reads format 2"):
        read_facts(tmp_path)


def test_the_facts_tell_what_the_model_is_and_prove_its_files(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.validate({10: 2.0})
    folder = study.folder / "batch-000010"
    facts = read_facts(folder)
    assert (facts["batch"], facts["monitor"], facts["value"]) == (10, "val/loss", 2.0)
    assert facts["metrics"] == {"loss": 2.0, "accuracy": -2.0}
    with (folder / "model/model.state").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(DamagedCheckpoint, match=r"written: model/model\.state does not match its checksum"):
        read_facts(folder)


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"files": {"model/model.state": [1, "0" * 32]}})])
def test_facts_that_are_junk_are_damage(text: str, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(text)
    with pytest.raises(DamagedCheckpoint):
        read_facts(tmp_path)


def test_a_restart_removes_what_is_newer_than_its_checkpoint(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=2)
    study.validate({10: 3.0, 20: 2.0})
    saved = study.restarted(keep_best=2)
    (study.folder / "batch-000040.tmp").mkdir()
    (study.folder / "notes.txt").write_text("mine")
    study.folder.joinpath("batch-000030").mkdir()
    saved.models.on_train_start(saved.server)
    assert saved.on_disk == ["batch-000010", "batch-000020", "notes.txt"]
    saved.validate({30: 2.5})
    assert saved.on_disk == ["batch-000020", "batch-000030", "notes.txt"]


def test_a_model_that_has_gone_meanwhile_is_none_of_the_best(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=2)
    study.validate({10: 3.0, 20: 2.0})
    saved = study.restarted(keep_best=2)
    study.validate({30: 1.0})
    saved.models.on_train_start(saved.server)
    assert [it["batch"] for it in saved.models.best] == [20]
    assert saved.on_disk == ["batch-000020"]


def test_another_monitor_after_a_restart_begins_anew(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.validate({10: 1.0})
    other = study.restarted(monitor="val/accuracy", mode="max")
    other.models.on_train_start(other.server)
    other.validate({20: 5.0})
    assert other.on_disk == ["batch-000020"]


def test_fewer_models_after_a_restart_are_the_better_ones(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=3)
    study.validate({10: 3.0, 20: 1.0, 30: 2.0})
    fewer = study.restarted(keep_best=1)
    fewer.models.on_train_start(fewer.server)
    assert fewer.on_disk == ["batch-000020"]


def test_a_batch_that_is_validated_twice_has_one_model(tmp_path: Path) -> None:
    study = Study(tmp_path, keep_best=2)
    study.validate({10: 2.0})
    study.validate({10: 1.5})
    assert [(it["batch"], it["value"]) for it in study.models.best] == [(10, 1.5)]


def test_a_disk_that_is_full_costs_this_model_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = Study(tmp_path, keep_best=2)
    study.validate({10: 2.0})

    def fail(file: Any) -> None:
        raise OSError(28, "No space left on device")

    study.models._capture = lambda: [PendingFile(path="model/model.state", write=fail)]
    study.validate({20: 1.0})
    assert study.on_disk == ["batch-000010"]
    assert "No space left" in caplog.text
    assert [it["batch"] for it in study.models.best] == [10]
