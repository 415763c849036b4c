"""Studies of a field whose size changes from step to step: each sample has exactly the values of its step."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.config import load
from stream_server.server.simulations.design import ParameterDesign
from tests.study.numpy_study.swarm import MOST, NUM_STEPS, points_at
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, run_here, run_study

SWARM: dict[str, Any] = {
    "study.fields": {
        "points": [{"max": MOST}, 3],
        "weights": {"shape": [{"max": MOST}], "dtype": "float32", "optional": True},
        "energy": [1],
    },
    "simulation.command": ["python", "swarm.py"],
    "server.class": "swarm_server.py:SwarmServer",
}
EXPECTED = Counter((simulation, step) for simulation in range(1, 7) for step in range(NUM_STEPS))


def trained_in(run: Run) -> Counter[tuple[int, int]]:
    files = run.output_dir.glob("samples-*.txt")
    return Counter(tuple(map(int, line)) for file in files for line in np.loadtxt(file, int, ndmin=2).tolist())


def test_each_sample_of_a_study_has_the_size_of_its_step_whatever_the_ranks(tmp_path: Path) -> None:
    output_dir, settings = tmp_path / "run", SWARM | {"checkpoint.every_batches": 2, "buffer.policy": "firo"}
    killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    done = run_here(NUMPY_STUDY, output_dir, settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    assert set(trained_in(done)) == set(EXPECTED)
    assert done.account["trained"] == len(EXPECTED)


@pytest.mark.full
def test_statistics_and_a_replay_are_of_the_values_that_there_are(tmp_path: Path) -> None:
    settings = SWARM | {
        "checkpoint.record": True,
        "normalization.fields": ["points", "weights"],
        "normalization.per": "value",
    }
    recorded = run_study(NUMPY_STUDY, tmp_path / "recorded", num_ranks=2, settings=settings)
    assert recorded.exit_code == 0, recorded.output
    assert trained_in(recorded) == EXPECTED
    design = ParameterDesign(load(NUMPY_STUDY))
    points = [points_at(step, design.parameters(simulation)) for simulation, step in EXPECTED]
    found = np.load(recorded.output_dir / "statistics.npz")["mean"]
    np.testing.assert_allclose(found, np.concatenate(points).mean(axis=0))
    arguments = ["--replay", str(recorded.output_dir)]
    replayed = run_here(NUMPY_STUDY, tmp_path / "replayed", settings=settings, arguments=arguments)
    assert replayed.exit_code == 0, replayed.output
    assert trained_in(replayed) == EXPECTED


@pytest.mark.full
def test_files_of_samples_have_the_rows_of_each_time_step_and_train_alike(tmp_path: Path) -> None:
    offline = {"offline.write_files": True}
    written = run_here(NUMPY_STUDY, tmp_path / "written", settings=SWARM | offline)
    assert written.exit_code == 0, written.output
    arguments = ["--replay", str(written.output_dir / "samples")]
    trained = run_study(NUMPY_STUDY, tmp_path / "trained", num_ranks=2, settings=SWARM, arguments=arguments)
    assert trained.exit_code == 0, trained.output
    assert trained_in(trained) == EXPECTED
