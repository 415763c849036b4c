"""State beside the model: states of each rank, weights of another run, files of one's own in checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import checkpoints, killed_at
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

NUM_SIMULATIONS, NUM_STEPS = 4, 20
SETTINGS: dict[str, Any] = {
    "study.simulations": NUM_SIMULATIONS,
    "server.class": "keeping_server.py:KeepingServer",
    "checkpoint.every_batches": 3,
    "validation.pictures": 0,
}


def lines(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def newest(batches: int) -> float:
    """The weights that the other run has written by then."""
    return float(batches // 2 * 2)


def test_states_of_ranks_weights_of_another_run_and_files_survive_a_restart_on_other_ranks(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    output_dir = tmp_path / "run"
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=2, settings=SETTINGS)
    first, second = (output_dir / "checkpoints" / name for name in checkpoints(output_dir))
    # The second was committed, and nobody told of it.
    assert {file.name for file in (first / "mine").iterdir()} == {"rank-0.json", "rank-1.json"}
    assert not (second / "mine").exists()
    (first / "mine" / "rank-0.json").write_text("something else")
    safetensors.save_file(
        {"weight": safetensors.load_file(output_dir / "other.safetensors")["weight"] + 1000},
        output_dir / "other.safetensors",
    )

    done = run_study(NUMPY_STUDY, output_dir, num_ranks=1, settings=SETTINGS)
    assert_complete(done, num_simulations=NUM_SIMULATIONS)
    assert [text for text in done.report["warnings"] if "KeepingServer" in text] == []

    # Simulation 0 is held out.
    expected = [[simulation, step] for simulation in range(1, NUM_SIMULATIONS + 1) for step in range(NUM_STEPS)]
    assert sorted(json.loads((output_dir / "trained-0.json").read_text())) == expected

    for num_ranks in (2, 1):
        noted = [lines(output_dir / f"teacher-{num_ranks}-{rank}.jsonl") for rank in range(num_ranks)]
        assert all(each == noted[0] for each in noted)
        assert all(weights == [newest(batches)] * 2 for _, batches, *weights in noted[0])
    [(when, batches, *_)] = [line for line in noted[0] if line[0] == "start"]
    assert (when, batches >= 6) == ("start", True)

    assert "mine" in {folder.name for folder in (output_dir / "checkpoints" / checkpoints(output_dir)[-1]).iterdir()}
    assert len(checkpoints(output_dir)) == 2
    assert not first.exists()
    frozen = safetensors.load_file(output_dir / "model" / "model.safetensors")["0.weight"]
    assert (frozen == 0.5).all()
