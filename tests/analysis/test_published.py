"""The published studies beside training from files: both see the same samples."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.published import offline
from benchmarks.published.__main__ import table, write
from benchmarks.published.heat import HeatStudy, solutions
from benchmarks.published.ks import KsStudy, forecaster, windows
from benchmarks.published.lorenz import LorenzStudy, changes
from benchmarks.published.runs import overrides
from configs.heat.heat import solve
from stream_server.config import load
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.user.components import load_server_class
from stream_server.user_code import load_class

STUDY = Path(__file__).parents[2] / "configs" / "heat" / "small-scale.json"
LORENZ = STUDY.parents[1] / "lorenz" / "study.json"
KS = STUDY.parents[1] / "ks" / "study.json"
STUDY_OF_TWO = HeatStudy(num_simulations=2, num_nodes=4, capacity=50)
SMALL = [*overrides(STUDY_OF_TWO.settings()), "study.seed=3", "validation.simulations=1", "validation.every_batches=15"]


def test_the_files_hold_the_samples_of_the_study(tmp_path: Path) -> None:
    config = load(STUDY, SMALL)
    (inputs, fields), (_, held_out) = offline.simulate(config, tmp_path, solutions)
    parameters = ParameterDesign(config).parameters(1)
    truth = np.array(list(solve(size=4, **parameters)), np.float32).reshape(100, 16)
    np.testing.assert_array_equal(fields[:100], truth)
    np.testing.assert_array_equal(inputs[7], np.array([*parameters.values(), 7], np.float32))
    assert held_out.shape == (100, 16)
    assert not np.array_equal(held_out, truth)


@pytest.mark.full
def test_training_from_files_learns_and_ends_with_a_validation(tmp_path: Path) -> None:
    config = load(STUDY, SMALL)
    training, held_out = offline.simulate(config, tmp_path, solutions)
    course = list(offline.train(config, offline.learner(config), training, held_out, epochs=2))
    assert [it["batch"] for it in course] == [15, 30, 40]
    assert course[-1]["mse"] < 0.5 * float(np.mean(np.square(held_out[1])))


def test_the_error_is_the_mean_over_all_held_out_samples(tmp_path: Path) -> None:
    config = load(STUDY, [*SMALL, "validation.batch_size=7"])
    _, (inputs, fields) = offline.simulate(config, tmp_path, solutions)
    found = offline.error(lambda _, truth: truth.square().mean(), config, (inputs, fields))
    assert found == pytest.approx(float(np.mean(np.square(fields, dtype=np.float64))), rel=1e-5)


@pytest.mark.full
def test_tables_and_pictures_are_written(tmp_path: Path) -> None:
    study = HeatStudy(num_simulations=1, num_nodes=4, capacity=50, step_s=0.01)
    run = study.from_files(epochs=1, seed=0)
    assert run.wall_s > study.simulations_s == pytest.approx(5.5)
    write(tmp_path, "heat", study, [replace(run, kind="reservoir", seen=[(0, 0, 20), (1, 2, 30)]), run])
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [float(row["mse"]) for row in rows] == [run.course[-1]["mse"]] * 2
    assert (tmp_path / "seen.csv").read_text().splitlines()[1:] == ["reservoir,0,0,0,20", "reservoir,0,1,2,30"]
    assert (tmp_path / "heat.png").stat().st_size > 10_000
    assert table([run.result, {**run.result, "population": 7}], study.unit).splitlines()[-1].endswith(" 7 |")


def test_the_lorenz_files_hold_what_its_simulations_send_scaled_as_its_server_class_does() -> None:
    config = load(LORENZ, ["study.simulations=1"])
    constants = {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}
    inputs, outputs = changes(config, 5, constants)
    assert (inputs.shape, outputs.shape) == ((1000, 6), (1000, 3))
    np.testing.assert_allclose(inputs[0, 3:], [0, 0, (8 / 3 - 2.65) / 0.4], atol=1e-6)
    # A state and the change by which the next one differs from it.
    np.testing.assert_allclose(inputs[1:, 1] - inputs[:-1, 1], outputs[:-1, 1] * 0.5 / 8, atol=1e-5)


def test_each_kind_of_buffer_of_the_lorenz_study_is_one_that_a_study_may_have() -> None:
    for settings in LorenzStudy().kinds().values():
        assert load(LORENZ, overrides(settings)).buffer.capacity in (1000, 4000)


def test_the_windows_in_files_are_those_of_the_stream_and_their_loss_that_of_the_server_class() -> None:
    config = load(KS)
    parameters = ParameterDesign(config).parameters(8)
    inputs, outputs = windows(config, 8, parameters)
    assert (inputs.shape, outputs.shape) == ((39, 64 + 31), (39, 2 * 64))
    np.testing.assert_array_equal(outputs[:-1, :64], inputs[1:, :64])
    np.testing.assert_array_equal(outputs[:-1, 64:], outputs[1:, :64])
    np.testing.assert_array_equal(inputs[5, 64:], np.array(list(parameters.values()), np.float32))

    learner = forecaster(config, num_batches=10)
    server = load_server_class(config)(config)
    torch.manual_seed(config.study.seed)
    server.model = load_class(config.training.model.class_, config.study_dir, kind="")(**config.training.model.args)
    batch = torch.from_numpy(inputs[:, None, :64]), torch.from_numpy(inputs[:, 64:])
    truth = torch.from_numpy(outputs).reshape(39, 2, 1, 64)
    expected = server.training_step((batch, truth), 0).mean().item()
    assert learner.loss(torch.from_numpy(inputs), torch.from_numpy(outputs)).item() == pytest.approx(expected)


def test_each_kind_of_buffer_of_the_study_of_trajectories_is_one_that_a_study_may_have() -> None:
    assert len([load(KS, overrides(settings)) for settings in KsStudy().kinds().values()]) == 4
