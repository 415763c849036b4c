"""A study that is stopped by a signal in the middle of a validation goes on in the middle of it."""

import json
import shutil
from pathlib import Path
from typing import Any

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
