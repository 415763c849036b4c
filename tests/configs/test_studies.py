"""The studies we ship run as they are, made smaller so that a test may take its time."""

from pathlib import Path

import numpy as np
import pytest

from stream_server.config import load
from tests.needs import need
from tests.support.runs import Run, run_here

CONFIGS = Path(__file__).parent.parent.parent / "configs"
STUDIES = sorted(CONFIGS.glob("*/*.json"))


def first_and_last_loss(done: Run) -> tuple[float, float]:
    losses = [entry["loss"] for entry in done.report["validation"]]
    return losses[0], losses[-1]


def assert_all_finished(done: Run, num_simulations: int) -> None:
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["simulations"]["finished"] == num_simulations
    assert done.account["untrained"] == 0


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_study_passes_its_own_check(study: Path, tmp_path: Path) -> None:
    if study.parent.name == "lammps":
        need("LAMMPS")
    done = run_here(study, tmp_path / "run", arguments=["--check"])
    exit_code, output = done.exit_code, done.output
    build = study.parent / "build"
    if "build/heat" in study.read_text() and not build.exists():
        assert exit_code == 2, output
        assert f"simulation.command: there is no program {build}" in output
    elif '"backend": "slurm' in study.read_text() and exit_code:
        assert exit_code == 2, output
        assert ".backend: " in output or "Slurm would not take the jobs" in output
    else:
        assert exit_code == 0, output


# Training starts when more samples wait than could come before the held-out simulations have ended, so that the first
# validation is of a network that has learned little.
LATE_ENOUGH = 200


@pytest.mark.full
def test_heat_learns(tmp_path: Path) -> None:
    settings = {
        "study.simulations": 4,
        "buffer.watermark": LATE_ENOUGH,
        "training.draws_per_sample": 8,
        "validation.simulations": 1,
        "validation.every_batches": 40,
    }
    done = run_here(CONFIGS / "heat" / "study.json", tmp_path / "run", settings=settings)
    assert_all_finished(done, num_simulations=5)
    first, last = first_and_last_loss(done)
    assert last < first / 3


@pytest.mark.full
def test_lorenz_learns(tmp_path: Path) -> None:
    settings = {
        "study.simulations": 6,
        "buffer.watermark": 8 * LATE_ENOUGH,
        "training.draws_per_sample": 12,
        "validation.simulations": 2,
        "validation.every_batches": 20,
    }
    done = run_here(CONFIGS / "lorenz" / "study.json", tmp_path / "run", settings=settings)
    assert_all_finished(done, num_simulations=8)
    first, last = first_and_last_loss(done)
    assert last < first / 3


NUM_TRAJECTORIES = 3
# A few simulations teach a network only what others are like that differ little.
TRAJECTORIES = {
    "ks": {},
    "gray-scott": {"parameters.bounds.feed": [0.05, 0.052], "parameters.bounds.removal": [0.05, 0.052]},
    "advection": {"parameters.bounds.velocity": [0.8, 1]},
}


@pytest.mark.parametrize(
    "study", ["ks", *(pytest.param(it, marks=pytest.mark.full) for it in ("gray-scott", "advection"))]
)
def test_a_study_of_trajectories_forecasts_them_better_and_better(study: str, tmp_path: Path) -> None:
    settings = TRAJECTORIES[study] | {
        "study.simulations": NUM_TRAJECTORIES,
        "buffer.watermark": 60,
        "training.draws_per_sample": 8,
        "validation.simulations": 1,
        "validation.every_batches": None,
        "validation.at": [1],
    }
    done = run_here(CONFIGS / study / "study.json", tmp_path / "run", settings=settings)
    assert_all_finished(done, num_simulations=NUM_TRAJECTORIES + 1)
    config = load(CONFIGS / study / "study.json")
    assert config.window is not None
    assert config.study.time_steps is not None
    num_windows, num_steps = config.window.num_in(config.study.time_steps.num), config.study.time_steps.num
    assert done.account["windows"]["made"] == done.account["trained"] == NUM_TRAJECTORIES * num_windows
    curves = done.report["rollout"]
    assert curves["lead_times"] == list(range(1, num_steps))
    first, last = done.report["validation"][0]["rollout"], done.report["validation"][-1]["rollout"]
    for name in config.study.fields:
        assert np.isfinite(curves["mse"][name]).all()
        assert last[name] == pytest.approx(np.mean(curves["mse"][name]))
        assert last[name] < first[name]
