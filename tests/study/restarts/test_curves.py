"""The curves of a study that was killed: each point once, and none is missing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.study.restarts.test_replay import SETTINGS
from tests.support.killing import run_through
from tests.support.runs import NUMPY_STUDY, Run, run_study

LOGGED: dict[str, Any] = SETTINGS | {
    "training.log_every_batches": 4,
    "validation.every_batches": 3,
    "buffer.policy": "firo",
    "metrics.writers": ["tensorboard"],
}
MOMENTS = {
    "training": ["server.trained=kill@7"],
    "validation": ["validation.before_batch=kill@6"],
    "a save": ["checkpoint.part_written=kill@5"],
    "two": ["server.trained=kill@9", "validation.before_batch=kill@5"],
}
# TensorBoard's own reader, in a process of its own: its import is slow and warns.
READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
curves = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps(curves))
"""

Curve = list[tuple[int, float]]


def of_json_lines(output_dir: Path) -> dict[str, Curve]:
    """The points of the curves, by name, in the order of the file."""
    curves: dict[str, Curve] = {"train/loss": [], "val/loss": []}
    for line in (output_dir / "metrics" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, curve in curves.items():
            if name in record:
                curve.append((record["batch"], record[name]))
    return curves


def of_tensorboard(output_dir: Path) -> dict[str, Curve]:
    command = [sys.executable, "-c", READ_TENSORBOARD, str(output_dir / "metrics" / "tensorboard")]
    curves = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    return {name: [(step, value) for step, value in curves[name]] for name in ("train/loss", "val/loss")}


def batches_of(curve: Curve) -> list[int]:
    return [batch for batch, _ in curve]


@pytest.fixture(scope="module")
def undisturbed(recorded: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return run_study(NUMPY_STUDY, folder, settings=LOGGED, arguments=["--replay", str(recorded.output_dir)])


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_curves_of_a_killed_study_have_neither_gap_nor_overlap(
    recorded: Run, undisturbed: Run, tmp_path: Path, moment: str
) -> None:
    arguments = ["--replay", str(recorded.output_dir)]
    done = run_through(MOMENTS[moment], NUMPY_STUDY, tmp_path / "run", settings=LOGGED, arguments=arguments)
    assert done.exit_code == 0, done.output
    assert done.report["restarts"] == len(MOMENTS[moment])
    expected, found = of_json_lines(undisturbed.output_dir), of_json_lines(done.output_dir)
    assert batches_of(expected["train/loss"]) == [*range(4, 41, 4)]
    assert batches_of(expected["val/loss"]) == [*range(3, 40, 3), 40]
    assert batches_of(found["train/loss"]) == batches_of(expected["train/loss"])
    assert found["val/loss"] == expected["val/loss"]
    shown = of_tensorboard(done.output_dir)
    for name, curve in found.items():
        assert batches_of(shown[name]) == batches_of(curve)
        assert [value for _, value in shown[name]] == pytest.approx([value for _, value in curve])
