"""A saved model is found and validated on what was held out for it, on any number of ranks."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.commands.evaluate import evaluate
from stream_server.server.model.best_models import BestFolder
from stream_server.server.model.saved_model import find_saved_model, load_model, model_files
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import Step
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import read_state
from tests.support.launch import mpirun
from tests.support.runs import Run, run_here, run_study
from tests.support.settings import settings

pytestmark = pytest.mark.slow

STUDY = Path(__file__).parents[2] / "study" / "numpy_study" / "study.json"
PROGRAM = """
import json, sys
from pathlib import Path
from stream_server.config import load
from stream_server.server.commands.evaluate import evaluate
study, checkpoint, overrides = sys.argv[1:]
sys.exit(evaluate(load(Path(study), json.loads(overrides)), Path(checkpoint)))
"""


@pytest.fixture(autouse=True)
def user_files_are_imported_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the study is on the import path within each test alone."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("server", "torch_server", "averaged_server"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study that two ranks have trained to its end."""
    return run_study(STUDY, tmp_path_factory.mktemp("trained") / "run", num_ranks=2)


def overrides(run: Run, **changes: Any) -> list[str]:
    changes = {"study.output_dir": str(run.output_dir), **changes}
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def config_of(run: Run) -> StudyConfig:
    return load(STUDY, overrides(run))


def on_ranks(num: int, run: Run, checkpoint: Path, **changes: Any) -> "subprocess.CompletedProcess[str]":
    launch = mpirun("mpich", num, ["-c", PROGRAM, str(STUDY), str(checkpoint), json.dumps(overrides(run, **changes))])
    return subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120, check=False)


def newest(run: Run) -> Path:
    return max((run.output_dir / "checkpoints").glob("0*"))


def last_loss(run: Run) -> str:
    """The loss of the validation at the end of the training."""
    return f"{run.report['validation'][-1]['loss']:.6g}"


def test_the_newest_checkpoint_of_a_run_gives_the_last_validation_again(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(config_of(trained), trained.output_dir) == 0
    output = capsys.readouterr().out
    assert f"ripple after {trained.report['batches']} batches, {newest(trained)}" in output
    assert last_loss(trained) in output


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_other_numbers_of_ranks_find_the_same(num_ranks: int, trained: Run) -> None:
    ran = on_ranks(num_ranks, trained, newest(trained))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count(last_loss(trained)) == 1


def test_user_code_that_raises_on_one_rank_ends_all_and_is_told_once(trained: Run) -> None:
    trouble = {"user.trouble": "prepare_training_attributes", "user.rank": 1}
    ran = on_ranks(2, trained, newest(trained), **trouble)
    assert ran.returncode == 3
    assert ran.stderr.count("rank 1 failed in evaluation") == 1
    assert "ArithmeticError: trouble in prepare_training_attributes of rank 1" in ran.stderr


def test_the_length_of_the_training_is_known_as_it_was(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two ranks, 120 samples are 15 updates of batches of four; the evaluation has one rank."""
    found: list[int | None] = []
    monkeypatch.setattr(StreamServer, "on_validation_start", lambda self: found.append(self.progress.expected_lr_steps))
    assert evaluate(config_of(trained), trained.output_dir) == 0
    assert found == [15]


def test_evaluating_writes_nothing_into_the_run(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # The user's callbacks may write.
    monkeypatch.setattr(StreamServer, "configure_callbacks", lambda self: pytest.fail("asked for callbacks"))
    before = sorted(path for path in trained.output_dir.rglob("*"))
    evaluate(config_of(trained), trained.output_dir)
    assert sorted(path for path in trained.output_dir.rglob("*")) == before


def test_without_held_out_samples_or_a_loader_there_is_nothing_to_evaluate(
    trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stream_server.server.training.validation.validation_batches.HeldOutSamples.__call__", lambda self: None
    )
    with pytest.raises(
        ConfigError, match="LinearServer has no val_dataloader, and the checkpoint has no held-out samples"
    ):
        evaluate(config_of(trained), trained.output_dir)


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_a_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the output folder of a study, or one of its checkpoints"):
        find_saved_model(tmp_path / name)


def copied(trained: Run, folder: Path) -> Path:
    """A copy of the checkpoints of a run that a test may damage."""
    target = folder / "checkpoints"
    subprocess.run(["cp", "-r", str(trained.output_dir / "checkpoints"), str(target)], check=True)
    return target


@pytest.mark.parametrize("file", ["model/model.state", "model/user.state", "rank-1/held-out.rows", "manifest.json"])
def test_a_damaged_checkpoint_is_refused(file: str, trained: Run, tmp_path: Path) -> None:
    damaged = copied(trained, tmp_path) / newest(trained).name
    with (damaged / file).open("r+b") as content:
        byte = content.read(1)
        content.seek(0)
        content.write(bytes([byte[0] ^ 1]))
    with pytest.raises(DamagedCheckpoint):
        find_saved_model(damaged)


class Learner(StreamServer):
    def __init__(self, weights: float = 0.0) -> None:
        super().__init__()
        self.weights = np.full((4, 8), weights)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


class Remembering(Callback):
    """A built-in behaviour with a state."""

    def __init__(self, mean: float) -> None:
        self.mean = mean

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


def best_model(checkpoints: Path, server: StreamServer, step: Step, states: dict[str, Any]) -> Path:
    parts = model_files(server, step, callbacks=states, allow_pickle=False)
    return BestFolder(checkpoints / "best").write(7, parts, {"batch": 7})


def test_one_of_the_best_models_is_validated_on_the_samples_of_the_newest_checkpoint(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Learner(1.0)
    best = best_model(copied(trained, tmp_path), server, PlainStep(server, SoloRanks()), {})
    assert evaluate(config_of(trained), best) == 0
    output = capsys.readouterr().out
    assert "ripple after 7 batches" in output
    assert last_loss(trained) not in output


def test_a_saved_model_comes_back_with_what_belongs_to_it(tmp_path: Path) -> None:
    server, other = Learner(3.0), Learner()
    best = best_model(tmp_path, server, PlainStep(server, SoloRanks()), {"Remembering": {"mean": 5.0}})
    callbacks, remembering = Callbacks(other), Remembering(0.0)
    callbacks.surround(after=[remembering])
    load_model(find_saved_model(best), other, PlainStep(other, SoloRanks()), callbacks, allow_pickle=False)
    assert other.weights.tolist() == server.weights.tolist()
    assert remembering.mean == 5.0


class Net(TorchServer):
    def __init__(self, num_outputs: int = 2) -> None:
        super().__init__(settings())
        self.num_outputs = num_outputs

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(3, self.num_outputs)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


def load_into(server: Net, best: Path) -> dict[str, Any]:
    with TorchStep(server, SoloRanks(), server.config) as step:
        load_model(find_saved_model(best), server, step, Callbacks(server), allow_pickle=False)
        return {name: value.tolist() for name, value in server.model.state_dict().items()}


def test_a_torch_model_comes_back_without_its_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    server = Net()
    with TorchStep(server, SoloRanks(), server.config) as step:
        nn.init.ones_(server.model.weight)
        best = best_model(tmp_path, server, step, {})
        expected = {name: value.tolist() for name, value in server.model.state_dict().items()}
    assert load_into(Net(), best) == expected
    assert set(read_state(best / "model/model.state")) == {"model", "callbacks"}
    with pytest.raises(
        UserCodeError, match=r"Net\.prepare_training_attributes makes something else than what was saved"
    ):
        load_into(Net(num_outputs=3), best)


@pytest.mark.full
def test_a_checkpoint_and_one_of_the_best_models_are_evaluated_by_their_average(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    changes = {"server.class": "averaged_server.py:AveragedServer", "study.simulations": 2}
    run = run_here(STUDY, tmp_path / "run", settings=changes)
    assert run.exit_code == 0, run.output
    losses = {entry["batch"]: entry["loss"] for entry in run.report["validation"]}
    best = min(losses, key=lambda batch: losses[batch])
    for checkpoint, batch in (
        (run.output_dir, max(losses)),
        (run.output_dir / f"checkpoints/best/batch-{best:06d}", best),
    ):
        assert evaluate(load(STUDY, overrides(run, **changes)), checkpoint) == 0
        assert f"{losses[batch]:.6g}" in capsys.readouterr().out
