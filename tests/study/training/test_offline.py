"""An ensemble is written to files without a training, and trained from these files later."""

import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.study.conftest import Here
from tests.study.numpy_study.ripple import NUM_STEPS, signal_at
from tests.study.training.test_windows import WINDOWS, assert_windows, oracle
from tests.support.failpoints import failpoints
from tests.support.killing import copy_of, killed_at, model_of, run_through
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

pytestmark = pytest.mark.slow

WRITING: dict[str, Any] = {
    "study.simulations": 4,
    "launcher.max_running": 1,
    "checkpoint.every_batches": 2,
    "offline.write_files": True,
}


def assert_computed(run: Run, num_simulations: int) -> None:
    """Every file, the held-out simulation's too, has bit for bit what its simulation computes."""
    assert run.exit_code == 0, run.output
    assert run.report["balanced"]
    with (run.output_dir / "parameters.csv").open() as table:
        rows = {int(row.pop("simulation")): row for row in csv.DictReader(table)}
    files = run.output_dir / "samples"
    assert {path.name for path in files.iterdir()} == {f"simulation-{i:06d}.h5" for i in range(num_simulations + 1)}
    for simulation, texts in rows.items():
        parameters = {name: float(text) for name, text in texts.items()}
        with h5py.File(files / f"simulation-{simulation:06d}.h5") as file:
            assert file.attrs["finished"]
            assert dict(file["parameters"].attrs) == parameters
            assert file["time_step"][:].tolist() == list(range(NUM_STEPS))
            signals = np.stack([signal_at(step, parameters) for step in range(NUM_STEPS)])
            assert np.array_equal(file["fields/signal"][:], signals)
            assert np.array_equal(file["fields/energy"][::2, 0], [np.sum(signal**2) for signal in signals[::2]])
            assert file["present/energy"][:].tolist() == [True, False] * (NUM_STEPS // 2)
    assert not (run.output_dir / "record").exists()
    assert not (run.output_dir / "model").exists()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study that writes files and has come to a full disk; nobody but `written` goes on with it."""
    folder = tmp_path_factory.mktemp("written")
    full = failpoints(folder / "full", "record.appended=raise:ENOSPC@4")
    return run_study(NUMPY_STUDY, folder / "run", settings=WRITING, environment=full)


@pytest.fixture(scope="module")
def written(failed: Run) -> Run:
    """The files of five simulations, out of the study of `failed`, which was also killed on its way."""
    return run_through(["files.in_place=kill"], NUMPY_STUDY, failed.output_dir, num_ranks=2, settings=WRITING)


@pytest.mark.full
def test_a_full_disk_ends_a_study_that_writes_files(failed: Run) -> None:
    assert failed.exit_code == 5, failed.output
    assert "the samples cannot be recorded: [Errno 28] No space left on device" in failed.output
    assert "run the same command again" in " ".join(failed.output.split())


@pytest.mark.full
def test_files_hold_bit_for_bit_what_the_simulations_computed_whatever_was_full_or_killed(written: Run) -> None:
    assert written.report["restarts"] == 2
    assert_computed(written, num_simulations=4)
    assert written.account["accepted"] == written.account["recorded"] == 4 * NUM_STEPS
    assert "trained" not in written.account


@pytest.mark.full
def test_a_training_from_files_that_is_killed_ends_with_the_same_weights_to_the_last_bit(
    written: Run, tmp_path: Path
) -> None:
    settings = {"study.simulations": 4, "checkpoint.every_batches": 2, "offline.epochs": 2}
    options: dict[str, Any] = {"settings": settings, "arguments": ["--replay", str(written.output_dir)]}
    whole = run_study(NUMPY_STUDY, tmp_path / "whole", **options)
    assert_complete(whole, num_simulations=4, num_steps=2 * NUM_STEPS)
    assert whole.report["validation"][-1]["loss"] < whole.report["validation"][0]["loss"]
    killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, tmp_path / "killed", **options)
    resumed = run_study(NUMPY_STUDY, tmp_path / "killed", **options)
    assert model_of(resumed.output_dir) == model_of(whole.output_dir)


@pytest.mark.full
def test_windows_are_made_of_the_steps_in_files_and_each_is_trained_after_a_kill(written: Run, tmp_path: Path) -> None:
    settings = WINDOWS | {"study.simulations": 4, "validation.rollout": {"fields": ["signal"]}}
    settings["server.class"] = "window_server.py:ForecastingServer"
    options: dict[str, Any] = {"num_ranks": 2, "settings": settings, "arguments": ["--replay", str(written.output_dir)]}
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, tmp_path / "run", **options)
    resumed = run_study(NUMPY_STUDY, tmp_path / "run", **options)
    assert_windows(resumed, oracle(range(1, 5)), num_expected=4 * 6)
    assert resumed.report["rollout"]["lead_times"] == list(range(2, 17, 2))


def test_files_of_further_simulations_join_those_that_are_there(written: Run, tmp_path: Path) -> None:
    more = run_study(NUMPY_STUDY, copy_of(written, tmp_path), settings=WRITING | {"study.simulations": 5})
    assert_computed(more, num_simulations=5)


def test_files_are_not_written_out_of_a_replay(stream_server_here: Here) -> None:
    exit_code, output = stream_server_here(NUMPY_STUDY, "--replay", "somewhere", settings=WRITING)
    assert exit_code == 2
    assert "offline.write_files" in output
