"""A study that is stopped by a signal in the middle of a validation goes on in the middle of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.storage.plain_state import read_state
from tests.support.killing import killed_at
from tests.support.runs import Run, assert_complete, run_here, run_study

pytestmark = pytest.mark.slow

STUDY = Path(__file__).parents[3] / "study" / "numpy_study"
SERVER = """
import json, os, signal
from server import LinearServer

class SignalledServer(LinearServer):
    def validation_step(self, batch, batch_idx):
        where = [self.progress.batches, self.rank, batch_idx]
        with open(self.output_dir.parent / f"seen-{self.rank}", "a") as seen:
            print(json.dumps(where), file=seen)
        signalled = self.output_dir.parent / "signalled"
        if where == [6, 1, 1] and not signalled.exists():
            signalled.touch()
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().validation_step(batch, batch_idx)
"""
# One simulation after the other: the held-out one is complete when the training begins, unless it is given up for slow
# and tried again behind the others.
SETTINGS: dict[str, Any] = {
    "server.class": "signalled.py:SignalledServer",
    "study.simulations": 3,
    "launcher.max_running": 1,
    "simulation.timeout_s": 600,
}


# In the validation after batch 3 twice, and as late as it can be: the values of the one after batch 6 are written.
POINTS = ["validation.before_batch=kill@2", "best.before_rename=kill", "best.renamed=kill@2"]


def seen(folder: Path) -> list[list[int]]:
    """Batch, rank and index of every call of `validation_step`, by rank."""
    return [json.loads(line) for rank in (0, 1) for line in (folder / f"seen-{rank}").read_text().splitlines()]


def validated(run: Run) -> list[int]:
    """The batches after which a validation was written."""
    lines = (run.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [record["batch"] for record in map(json.loads, lines) if "val/loss" in record]


@pytest.mark.full
def test_a_signal_in_a_validation_costs_no_batch_of_it_and_writes_no_value_twice(tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(STUDY, study)
    (study / "signalled.py").write_text(SERVER)
    first = run_study(study / "study.json", tmp_path / "run", num_ranks=2, settings=SETTINGS)
    assert first.exit_code == 75
    assert validated(first) == [3]
    second = run_study(study / "study.json", tmp_path / "run", num_ranks=2, settings=SETTINGS)
    assert second.exit_code == 0
    batches = second.report["batches"]
    assert validated(second) == [*range(3, batches + 1, 3), *([batches] if batches % 3 else [])]
    assert [it["batch"] for it in second.report["validation"]] == validated(second)
    # Ten held-out samples on each rank, in batches of four.
    assert [call for call in seen(tmp_path) if call[0] == 6] == [[6, rank, i] for rank in (0, 1) for i in range(3)]


def test_a_crash_in_a_validation_costs_no_batch_if_it_is_saved_before_it(tmp_path: Path) -> None:
    study, output_dir = STUDY / "study.json", tmp_path / "run"
    settings = SETTINGS | {"server.class": "server.py:LinearServer", "validation.save_before": True}
    for point in POINTS:
        killed_at(point, study, output_dir, mpi=None, settings=settings)
    done = run_here(study, output_dir, settings=settings)
    assert_complete(done, num_simulations=3)
    assert [start.batches for start in read_incarnations(output_dir / "checkpoints").starts] == [0, 3, 3, 6]
    batches = done.report["batches"]
    assert validated(done) == [*range(3, batches + 1, 3), *([batches] if batches % 3 else [])]
    lines = map(json.loads, (output_dir / "metrics" / "metrics.jsonl").read_text().splitlines())
    assert [line["batch"] for line in lines if "val/loss" in line] == validated(done)


SWAPPING = """
from server import LinearServer

class SwappingServer(LinearServer):
    def on_validation_start(self):
        self.trained, self.weights = self.weights, self.weights + 100.0

    def on_validation_end(self, metrics):
        self.weights = self.trained
"""


def test_weights_that_are_swapped_in_for_a_validation_are_those_of_the_best_model(tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(STUDY, study)
    (study / "swapping.py").write_text(SWAPPING)
    settings = {"server.class": "swapping.py:SwappingServer", "study.simulations": 2, "launcher.max_running": 1}
    done = run_here(study / "study.json", tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    (best,) = (done.output_dir / "checkpoints" / "best").glob("batch-*")
    saved = read_state(best / "model" / "user.state")
    assert saved["state_dict()"]["weights"].min() > 50.0, saved


LIMITED = """
import json
import numpy as np
from server import LinearServer

class LimitedServer(LinearServer):
    def process_simulation_data(self, data, config):
        inputs, signal = super().process_simulation_data(data, config)
        return inputs, signal, np.array([data.simulation_id, data.time_step])

    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx)

    def validation_step(self, batch, batch_idx):
        batches = self.progress.batches
        np.savez(self.output_dir.parent / f"weights-{batches}-{self.rank}", weights=self.weights)
        with open(self.output_dir.parent / f"seen-{self.rank}", "a") as seen:
            for inputs, key in zip(batch[0].tolist(), batch[2].tolist()):
                print(json.dumps([batches, *map(int, key), inputs]), file=seen)
        return super().validation_step(batch[:2], batch_idx)
"""
PLACES = np.arange(8) / 8


def losses_by_hand(folder: Path) -> dict[int, tuple[set[tuple[int, int]], float]]:
    """Of each validation, by its batch, the samples and the loss of the weights that it was made with."""
    lines = [json.loads(line) for path in folder.glob("seen-*") for line in path.read_text().splitlines()]
    found = {}
    for batch in {line[0] for line in lines}:
        weights = np.load(folder / f"weights-{batch}-0.npz")["weights"]
        # A validation that was begun twice, as the server died in it, is made of the same samples.
        inputs_of = {(simulation, step): inputs for it, simulation, step, inputs in lines if it == batch}
        inputs = np.array(list(inputs_of.values()))
        _, offset, slope, time = inputs.T[..., None]
        found[batch] = (set(inputs_of), float(np.mean((inputs @ weights - offset - slope * PLACES - time) ** 2)))
    return found


def test_a_limited_validation_has_the_same_samples_after_a_crash_in_it_and_on_other_ranks(tmp_path: Path) -> None:
    """The server dies on two ranks when the values after batch 21 are known, and goes on with one."""
    study, output_dir = tmp_path / "study", tmp_path / "run"
    shutil.copytree(STUDY, study)
    (study / "limited.py").write_text(LIMITED)
    settings = SETTINGS | {
        "server.class": "limited.py:LimitedServer",
        "study.simulations": 5,
        "training.batch_size": 2,
        "validation": {"simulations": 2, "every_batches": 7, "after_batches": 8, "save_before": True}
        | {"batch_size": 4, "max_batches": 3},
    }
    killed_at("validation.known=kill@2", study / "study.json", output_dir, num_ranks=2, settings=settings)
    done = run_study(study / "study.json", output_dir, settings=settings)
    assert done.exit_code == 0, done.output
    assert [start.batches for start in read_incarnations(output_dir / "checkpoints").starts] == [0, 21]
    batches = done.report["batches"]
    assert validated(done) == sorted({*range(14, batches + 1, 7), batches})
    # 3 batches of 4 of the 40 samples: every 40/12th; simulation 1 is counted from its twelfth step on.
    places = [-(-number * 40 // 12) - 1 for number in range(1, 13)]
    expected = {(place // 20, (place - 12 * (place // 20)) % 20) for place in places}
    by_hand = losses_by_hand(tmp_path)
    assert all(samples == expected for samples, _ in by_hand.values())
    for entry in done.report["validation"]:
        assert entry["loss"] == pytest.approx(by_hand[entry["batch"]][1], rel=1e-5)
    evaluated = run_here(study / "study.json", output_dir, settings=settings, arguments=["--evaluate", str(output_dir)])
    assert f"{done.report['validation'][-1]['loss']:.6g}" in evaluated.output


SETS = """
from server import LinearServer
import numpy as np

def sets():
    near, far = np.array([[1.0, 0.0, 0.0, 0.5]]), np.array([[1.0, 1.0, 0.0, 0.0]])
    wrong = [(far, np.full((1, 8), value)) for value in range(4)]
    return {"near": [(near, np.full((1, 8), 0.5))] * 3, "far": wrong}

class SetsServer(LinearServer):
    def validation_step(self, batch, batch_idx, set_name):
        with open(self.output_dir.parent / "seen", "a") as seen:
            print(self.progress.batches, set_name, file=seen)
        return super().validation_step(batch, batch_idx)
"""


def test_sets_have_schedules_and_limits_and_are_tried_before_the_training(tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(STUDY, study)
    (study / "sets.py").write_text(SETS)
    sets = {"far": {"every_batches": 4, "max_batches": 2}}
    settings = {
        "server.class": "sets.py:SetsServer",
        "study.simulations": 2,
        "validation": {"every_batches": 6, "at_start": 1, "val_dataloader": {"class": "sets.py:sets"}, "sets": sets},
        "checkpoint.monitor": "val/far/loss",
        "training.early_stop": {"patience": 3},
    }
    done = run_here(study / "study.json", tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["batches"] == 10
    seen = (tmp_path / "seen").read_text().splitlines()
    both = [*["near"] * 3, *["far"] * 2]
    of_batch = {0: ["near", "far"], 4: ["far"] * 2, 6: ["near"] * 3, 8: ["far"] * 2, 10: both}
    assert seen == [f"{batch} {name}" for batch, names in of_batch.items() for name in names]
    lines = map(json.loads, (done.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines())
    logged = [(line["batch"], name) for line in lines for name in line if name.startswith("val/")]
    assert logged == [
        *((4, "val/far/loss"), (6, "val/near/loss"), (8, "val/far/loss")),
        *((10, f"val/{name}") for name in ("loss", "near/loss", "far/loss")),
    ]
    assert [line for line in done.report["warnings"] if "early_stop.monitor: no val/loss in 3 validations" in line]
    [best] = done.report["best_models"]
    assert best["monitor"] == "val/far/loss"
    assert best["batch"] in (4, 8, 10)
