"""A whole study with a field that is sent once per simulation, held against plain torch."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.study.darcy_study.darcy import NUM_LOADS, coefficient_of, pressure_of
from tests.study.darcy_study.server import make_model
from tests.support.killing import killed_at
from tests.support.runs import Run, run_here, run_study

STUDY = Path(__file__).parents[1] / "darcy_study" / "study.json"
NUM_HELD_OUT, NUM_TRAINED = 1, 4


def coefficients(run: Run) -> dict[int, np.ndarray]:
    with (run.output_dir / "parameters.csv").open() as file:
        rows = {int(row["simulation"]): row for row in csv.DictReader(file)}
    return {
        simulation: coefficient_of({name: float(row[name]) for name in ("first", "second")})
        for simulation, row in rows.items()
    }


def loss_of(model: torch.nn.Module, samples: list[tuple[np.ndarray, int]]) -> torch.Tensor:
    inputs = torch.tensor(np.stack([np.concatenate([a, np.eye(NUM_LOADS)[load]]) for a, load in samples]))
    targets = torch.tensor(np.stack([pressure_of(a, load) for a, load in samples]))
    return functional.mse_loss(model(inputs), targets)


def trained_in(run: Run) -> dict[int, list[tuple[int, int]]]:
    """The samples of each batch of all ranks together."""
    batches: dict[int, list[tuple[int, int]]] = {}
    for file in sorted(run.output_dir.glob("trained-*.txt")):
        for number, simulation, load in np.loadtxt(file, int, ndmin=2).tolist():
            batches.setdefault(number, []).append((simulation, load))
    return batches


SETTINGS: dict[str, Any] = {"study.simulations": NUM_TRAINED, "validation.simulations": NUM_HELD_OUT}


@pytest.mark.full
def test_a_study_on_two_ranks_and_its_replay_on_one_are_trained_as_by_plain_torch(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    recorded = run(STUDY, num_ranks=2, settings={**SETTINGS, "checkpoint.record": True})
    assert_trained_as_by_plain_torch(recorded, coefficients(recorded))
    replayed = replay(recorded, tmp_path / "replayed")
    assert_trained_as_by_plain_torch(replayed, coefficients(recorded))
    again = replay(recorded, tmp_path / "again")
    for one, other in zip(saved_arrays(replayed), saved_arrays(again), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.full
def test_an_ensemble_in_files_has_them_and_is_trained_from_as_by_plain_torch(tmp_path: Path) -> None:
    written = run_study(STUDY, tmp_path / "written", num_ranks=1, settings={**SETTINGS, "offline.write_files": True})
    assert written.exit_code == 0, written.output
    a = coefficients(written)
    for simulation, coefficient in a.items():
        with h5py.File(written.output_dir / "samples" / f"simulation-{simulation:06d}.h5") as file:
            assert list(file["fields"]) == ["pressure"]
            assert file["static/coefficient"][()].tobytes() == coefficient.tobytes()
            pressure = [pressure_of(coefficient, load) for load in range(NUM_LOADS)]
            assert np.array_equal(file["fields/pressure"][()], pressure)
    assert_trained_as_by_plain_torch(replay(written, tmp_path / "trained"), a)


def replay(of: Run, output_dir: Path) -> Run:
    return run_here(STUDY, output_dir, settings=SETTINGS, arguments=["--replay", str(of.output_dir)])


def saved_arrays(run: Run) -> list[np.ndarray]:
    saved = np.load(run.output_dir / "weights.npz")
    return [saved[name] for name in sorted(saved.files)]


def assert_trained_as_by_plain_torch(done: Run, a: dict[int, np.ndarray]) -> None:
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    batches = trained_in(done)
    everything = [
        (simulation, load) for simulation in range(NUM_HELD_OUT, NUM_HELD_OUT + NUM_TRAINED) for load in range(5)
    ]
    assert sorted(key for batch in batches.values() for key in batch) == everything
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        model = make_model()
    finally:
        torch.set_default_dtype(torch.float32)
    saved = np.load(done.output_dir / "weights.npz")
    model.load_state_dict({name: it.float().double() for name, it in model.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, batch in sorted(batches.items()):
        optimizer.zero_grad()
        loss_of(model, [(a[simulation], load) for simulation, load in batch]).backward()
        optimizer.step()
    for name, weights in model.state_dict().items():
        np.testing.assert_allclose(saved[name], weights.numpy(), rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        expected = float(loss_of(model, [(a[held], load) for held in range(NUM_HELD_OUT) for load in range(5)]))
    assert done.report["validation"][-1]["loss"] == pytest.approx(expected, rel=1e-6)
    of_trained = np.stack([a[simulation] for simulation, _ in everything])
    np.testing.assert_allclose(saved["mean"], of_trained.mean(), rtol=1e-9)
    np.testing.assert_allclose(saved["std"], of_trained.std(), rtol=1e-9)


# On a smaller scale: tests/server/reception/test_static_fields.py, of a study that is restored.
@pytest.mark.full
def test_a_study_that_is_killed_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint.every_batches": 1, "launcher.max_running": 1}
    output_dir = tmp_path / "run"
    killed_at("checkpoint.renamed=kill@2", STUDY, output_dir, num_ranks=2, settings=settings)
    done = run_study(STUDY, output_dir, num_ranks=1, settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    assert (done.account["trained"], done.account["untrained"]) == (6 * NUM_LOADS, 0)
