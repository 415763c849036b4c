"""The comparison of samplers: errors and intervals against independent ones, and runs that are not repeated."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from torch import nn

from benchmarks.samplers import runs
from benchmarks.samplers.__main__ import by_sampler, main, summary, table, write
from benchmarks.samplers.held_out import HeldOut, drawn, held_out, squared_errors
from benchmarks.samplers.runs import Run
from benchmarks.samplers.statistics import estimate, ratio
from stream_server.config import load

ADVECTION = Path(__file__).parents[2] / "configs" / "advection" / "study.json"


class Decay(nn.Module):
    """Multiplies the state by the first parameter."""

    def forward(self, state: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        return state * parameters[:, :1, None]


def test_the_model_is_applied_to_its_own_forecasts_along_each_trajectory() -> None:
    states = np.ones((150, 4, 1, 8), np.float32)
    parameters = np.linspace(0.5, 1, 150)[:, None]
    found = squared_errors(Decay(), HeldOut(parameters=parameters, states=states))
    np.testing.assert_allclose(found, (parameters ** [1, 2, 3] - 1) ** 2, rtol=1e-4, atol=1e-6)


def test_a_forecast_that_is_not_finite_has_an_infinite_error() -> None:
    states = np.full((1, 3, 1, 8), 1e30, np.float32)
    found = squared_errors(Decay(), HeldOut(parameters=np.array([[1e30]]), states=states))
    assert np.isinf(found).all()


def test_held_out_trajectories_are_those_of_the_solver_and_are_kept(tmp_path: Path) -> None:
    config = load(ADVECTION)
    found = held_out(config, 120, tmp_path)
    assert found.states.shape == (120, 41, 1, 128)
    names = list(config.parameters.bounds or {})
    velocity, first = found.parameters[119, names.index("velocity")], found.states[119, 0, 0]
    way = np.exp(-2j * np.pi * np.arange(65) * velocity * 40 * 0.02)
    # The narrowest pulses are not resolved, so that the phases do not move them exactly.
    np.testing.assert_allclose(found.states[119, 40, 0], np.fft.irfft(np.fft.rfft(first) * way), atol=0.02)
    [path] = tmp_path.iterdir()
    written = path.stat().st_mtime_ns
    np.testing.assert_array_equal(held_out(config, 120, tmp_path).states, found.states)
    assert path.stat().st_mtime_ns == written


def test_held_out_parameters_are_even_in_the_bounds_and_in_their_logarithm() -> None:
    config = load(ADVECTION, ['parameters.bounds.width1=[0.001, 0.1, "log"]'])
    found = drawn(config, 4000)
    names = list(config.parameters.bounds or {})
    assert np.median(found[:, names.index("width1")]) == pytest.approx(0.01, rel=0.1)
    assert found[:, names.index("velocity")].mean() == pytest.approx(0, abs=0.05)
    assert np.abs(found[:, names.index("velocity")]).max() <= 1


def test_intervals_over_trajectories_are_those_of_another_bootstrap() -> None:
    errors = np.random.default_rng(3).lognormal(size=(1, 400))
    found = estimate(errors, "mean")
    expected = bootstrap((errors[0],), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert found.value == errors.mean()
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=0.03)


def test_a_ratio_is_certain_where_one_sampler_is_better_on_each_trajectory() -> None:
    reference = np.random.default_rng(3).lognormal(size=(4, 300))
    found = ratio(0.7 * reference, reference, "p99")
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.7, 0.7))
    assert ratio(reference[:, ::-1], reference, "mean").value == pytest.approx(1)


def result(sampler: str, seed: int, scale: float) -> dict[str, Any]:
    errors = scale * np.random.default_rng(seed).lognormal(size=50)
    return {
        "study": "ks",
        "sampler": sampler,
        "seed": seed,
        "overrides": [],
        "errors": errors.tolist(),
        "errors_by_lead_time": [0.1, 0.2],
        "first_parameter": ["viscosity", [0.5, 1.0]],
        "simulations": 2,
        "batches": 7,
        "draws": 70,
        "wall_s": 1.5,
        "restarts": 0,
        "cpu_s": 2.5,
        "warnings": [],
        "cores": 2,
    }


@pytest.mark.full
def test_tables_and_pictures_are_written(tmp_path: Path) -> None:
    results = [result(sampler, seed, scale) for sampler, scale in (("uniform", 1.0), ("breed", 0.5)) for seed in (0, 1)]
    write(tmp_path, results)
    rows = summary(by_sampler(results))
    assert [row["sampler"] for row in rows] == ["uniform", "breed"]
    assert rows[1]["mean ratio"] == rows[1]["p99 ratio"] == "0.5 (0.5 … 0.5)"
    assert table(rows).count("\n") == 4
    assert len(list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))) == 4
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == results
    assert (tmp_path / "steering.png").stat().st_size > 10_000


def run(**changes: Any) -> Run:
    settings = {"study": "advection", "sampler": "breed", "seed": 3, "num_held_out": 50, "settings": []}
    return Run(**settings | changes)


def test_a_run_that_is_done_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(runs.subprocess, "Popen", refuse)
    done = result("breed", 3, 1.0) | {"overrides": run().overrides}
    (tmp_path / "advection").mkdir()
    (tmp_path / "advection" / "breed-3.json").write_text(json.dumps(done))
    assert run().result(tmp_path) == done
    with pytest.raises(SystemExit, match="other settings"):
        run(settings=["study.simulations=9"]).result(tmp_path)
    with pytest.raises(SystemExit, match="other settings"):
        run(num_held_out=51).result(tmp_path)


def test_all_samplers_draw_each_sample_equally_often() -> None:
    for sampler in ("uniform", "breed"):
        config = run(sampler=sampler, settings=["training.draws_per_sample=4"]).config
        assert (config.buffer.policy, config.buffer.pseudo_epochs) == ("firo", 4)
        assert config.training.draws_per_sample is None
        assert config.parameters.sampler.class_ == sampler


@pytest.mark.full
def test_a_study_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)ended with 2: see .*breed-3\.log"):
        run(settings=["training.optimizer.args.momentum=1"]).result(tmp_path)
    assert "momentum" in (tmp_path / "advection" / "breed-3.log").read_text()


def test_a_setting_that_is_wrong_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--samplers", "bred", "--to", str(tmp_path)])
    assert "parameters.sampler" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--set", "study.seed=4", "--to", str(tmp_path)])
    assert "differs between the runs" in capsys.readouterr().err
