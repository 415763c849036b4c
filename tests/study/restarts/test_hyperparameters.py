"""A study goes on with the learning rate that its server.py has now, or with the saved one, as a plain loop does."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as numpy_files

from tests.support.failpoints import failpoints
from tests.support.killing import killed_at
from tests.support.runs import LEFT_BY_WORK, NUMPY_STUDY, Run, assert_complete, run_study

SERVER = '''
import numpy as np
import torch
from server import NUM_STEPS
from torch.nn import functional

from stream_server import TorchServer


class TunedServer(TorchServer):
    """Writes down its batches, by the batch from which this start goes on."""

    def prepare_training_attributes(self):
        self.base = self.progress.batches
        model = torch.nn.Linear(3, 8)
        if not self.base:
            np.savez(self.output_dir / "before.npz", **{name: it.numpy() for name, it in model.state_dict().items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)

    def process_simulation_data(self, data, config):
        return np.append(data.parameters, data.time_step / NUM_STEPS), data.fields["signal"]

    def training_step(self, batch, batch_idx):
        inputs, signals = batch
        name = f"{self.base}-{self.progress.batches}-{self.rank}.npz"
        position = self.progress.lr_steps
        np.savez(self.output_dir / name, inputs=inputs.numpy(), signals=signals.numpy(), position=position)
        return functional.mse_loss(self.model(inputs), signals)

    def validation_step(self, batch, batch_idx):
        return functional.mse_loss(self.model(batch[0]), batch[1])
'''
SETTINGS: dict[str, Any] = {
    "server.class": "tuned.py:TunedServer",
    "training.precision": "64-true",
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
    "study.simulations": 6,
    "server.ranks": 3,
}


def write_server(folder: Path, rate: float) -> None:
    (folder / "tuned.py").write_text(f"RATE = {rate}\n{SERVER}")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was killed on two ranks, after a checkpoint."""
    folder = shutil.copytree(NUMPY_STUDY.parent, tmp_path_factory.mktemp("study") / "tuned", ignore=LEFT_BY_WORK)
    write_server(folder, 0.05)
    killed_at("checkpoint.renamed=kill@2", folder / "study.json", folder / "run", num_ranks=2, settings=SETTINGS)
    return folder


def bases(run: Run) -> list[int]:
    """The number of batches from which each start went on."""
    incarnations = json.loads((run.output_dir / "checkpoints" / "incarnations.json").read_text())
    return [start["batches"] for start in incarnations["starts"]]


def loop(run: Run, rates: dict[int, float]) -> dict[str, Any]:
    """The weights of a loop in NumPy over the batches of a run, with the base rate from each of these batches on.

    On other ranks the schedule keeps its length, and so goes on by more than a step with each update.
    """
    with np.load(run.output_dir / "before.npz") as file:
        weight, bias = file["weight"].astype(float), file["bias"].astype(float)
    momenta = [np.zeros_like(weight), np.zeros_like(bias)]
    for batch in range(run.report["batches"]):
        base = max(base for base in bases(run) if base <= batch)
        parts = [np.load(path) for path in sorted(run.output_dir.glob(f"{base}-{batch}-*.npz"))]
        inputs, signals = (np.concatenate([part[name] for part in parts]) for name in ("inputs", "signals"))
        error = 2 * (inputs @ weight.T + bias - signals) / signals.size
        momenta = [
            0.9 * momentum + gradient
            for momentum, gradient in zip(momenta, (error.T @ inputs, error.sum(axis=0)), strict=True)
        ]
        rate = rates[max(first for first in rates if first <= batch)] * 0.7 ** (parts[0]["position"] // 3)
        weight, bias = weight - rate * momenta[0], bias - rate * momenta[1]
    return {"weight": weight, "bias": bias}


def assert_weights(run: Run, expected: dict[str, Any]) -> None:
    found = numpy_files.load_file(run.output_dir / "model" / "model.safetensors")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6)


def test_the_rate_of_an_edited_class_holds_from_the_restart_on_and_is_told_once(
    interrupted: Path, tmp_path: Path
) -> None:
    """The second server of the launcher is started after a crash, with the file as it is."""
    folder = shutil.copytree(interrupted, tmp_path / "tuned")
    write_server(folder, 0.02)
    done = run_study(
        folder / "study.json",
        folder / "run",
        program="stream-launcher",
        settings=SETTINGS,
        environment=failpoints(tmp_path / "met", "checkpoint.renamed=kill@2"),
    )
    assert_complete(done, num_simulations=6)
    first, changed, again = bases(done)
    assert first < changed < again
    assert done.report["changes"] == [
        {
            "name": "learning rate",
            "before": 0.05,
            "now": 0.02,
            "source": "tuned.py",
            "batch": changed,
            "note": f"optimizer state kept; the schedule goes on at its step {changed}",
        }
    ]
    # For a replay, which says that it does not repeat it.
    assert json.loads((done.output_dir / "record" / "record.json").read_text())["changes"] == done.report["changes"]
    said = (done.output_dir / "logs" / "server-0.log").read_text()
    assert said.count("learning rate 0.05 → 0.02, from tuned.py; optimizer state kept") == 1
    assert_weights(done, loop(done, {0: 0.05, changed: 0.02}))


def test_the_saved_rate_is_kept_for_one_who_asks_for_it(interrupted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(interrupted, tmp_path / "tuned")
    write_server(folder, 0.02)
    options: dict[str, Any] = {"num_ranks": 3, "settings": SETTINGS, "arguments": ["--keep-saved"]}
    done = run_study(folder / "study.json", folder / "run", **options)
    assert_complete(done, num_simulations=6)
    assert done.report["changes"] == []
    assert_weights(done, loop(done, {0: 0.05}))
    said = (done.output_dir / "logs" / "server-0.log").read_text()
    assert (
        "load.hyperparameters is saved: learning rate of TunedServer.prepare_training_attributes are not taken" in said
    )


def test_a_start_that_has_nothing_to_keep_says_so(tmp_path: Path) -> None:
    settings = {"training.max_batches": 1, "study.simulations": 2}
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=1, settings=settings, arguments=["--keep-saved"])
    said = (done.output_dir / "logs" / "server-0.log").read_text()
    assert "nothing was saved so far: this start takes what it makes" in said
