"""The solvers of the studies of trajectories, held against other methods, exact solutions and conservation laws."""

import runpy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from stream_server.config import StudyConfig, load

CONFIGS = Path(__file__).parents[2] / "configs"
SOLVERS = {"ks": "ks.py", "gray-scott": "gray_scott.py", "advection": "advection.py"}

Array = NDArray[Any]


def program(study: str) -> dict[str, Any]:
    return runpy.run_path(str(CONFIGS / study / SOLVERS[study]))


def study_of(name: str) -> StudyConfig:
    return load(CONFIGS / name / "study.json")


def drawn(study: str, num: int | None = None) -> dict[str, Array]:
    """Parameters that are spread over the ranges of a study."""
    random = np.random.default_rng(1)
    bounds = study_of(study).parameters.bounds or {}
    return {name: random.uniform(it.low, it.high, num) for name, it in bounds.items()}


def trajectory(solve: Callable[[Mapping[str, Any]], Iterator[dict[str, Array]]], parameters: Any) -> dict[str, Array]:
    steps = list(solve(parameters))
    return {name: np.stack([fields[name] for fields in steps]) for name in steps[0]}


def ks_waves(**amplitudes: float) -> dict[str, float]:
    return {f"{kind}{wave}": 0.0 for kind in "ab" for wave in range(1, 16)} | amplitudes


@pytest.mark.parametrize("study", SOLVERS)
def test_a_solver_gives_the_steps_and_the_fields_of_its_study(study: str) -> None:
    config, solve = study_of(study), program(study)["solve"]
    found = trajectory(solve, {name: float(it) for name, it in drawn(study).items()})
    assert config.study.time_steps is not None
    assert {name: it.shape for name, it in found.items()} == {
        name: (config.study.time_steps.num, *it.shape) for name, it in config.study.fields.items()
    }


@pytest.mark.parametrize("study", SOLVERS)
def test_many_simulations_at_once_are_those_that_run_alone(study: str) -> None:
    parameters, solve = drawn(study, 3), program(study)["solve"]
    together = trajectory(solve, parameters)
    for number in range(3):
        alone = trajectory(solve, {name: float(it[number]) for name, it in parameters.items()})
        for name, field in alone.items():
            assert np.isfinite(field).all()
            np.testing.assert_allclose(together[name][:, number], field, atol=1e-8)


@pytest.mark.parametrize("study", SOLVERS)
def test_the_network_reads_the_first_parameters_in_their_ranges(study: str) -> None:
    config = study_of(study)
    assert config.training.model is not None
    conditions = config.training.model.args["conditions"]
    bounds = list((config.parameters.bounds or {}).values())
    assert [[it.low, it.high] for it in bounds[: len(conditions)]] == conditions


def kuramoto_sivashinsky(viscosity: float, num_nodes: int, length: float) -> Callable[[float, Array], Array]:
    """The right-hand side at the nodes, by matrices of the trigonometric interpolant."""
    modes = np.fft.fftfreq(num_nodes, 1 / num_nodes)
    basis = np.exp(2j * np.pi * np.outer(np.arange(num_nodes), modes) / num_nodes)
    wave_numbers = 2 * np.pi * modes / length

    def matrix(factors: Array) -> Array:
        return np.asarray((basis * factors @ basis.conj().T).real / num_nodes)

    cut_derivative = matrix(1j * wave_numbers * (np.abs(modes) < num_nodes / 3))
    linear = matrix(wave_numbers**2 - viscosity * wave_numbers**4)
    return lambda _, u: linear @ u - cut_derivative @ u**2 / 2


def test_ks_solves_the_equations_as_a_method_of_eighth_order_does() -> None:
    ks = program("ks")
    parameters = {name: float(it) for name, it in drawn("ks").items()}
    found = trajectory(ks["solve"], parameters)["u"]
    rate = kuramoto_sivashinsky(parameters["viscosity"], ks["NUM_NODES"], ks["LENGTH"])
    times = ks["TIME_STEP"] * np.arange(5)
    expected = solve_ivp(rate, (0, times[-1]), found[0], "DOP853", times, rtol=1e-9, atol=1e-9)
    assert expected.success
    np.testing.assert_allclose(found[:5], expected.y.T, atol=2e-4)


def test_ks_converges_with_the_fourth_order() -> None:
    ks = program("ks")
    start = np.fft.rfft(ks["initial_state"](ks_waves(a2=0.9, b3=-0.7, a5=0.8)))
    viscosity = np.asarray(0.6)

    def at_one(dt: float) -> Array:
        solver, u_hat = ks["Etdrk4"](viscosity, dt), start
        for _ in range(round(1 / dt)):
            u_hat = solver.step(u_hat)
        return np.fft.irfft(u_hat)

    truth = at_one(1 / 1024)
    coarse, fine = (np.abs(at_one(dt) - truth).max() for dt in (1 / 64, 1 / 128))
    assert 13 < coarse / fine < 17


def test_a_small_wave_of_ks_grows_as_the_linear_equation_says() -> None:
    ks = program("ks")
    viscosity, wave = 1.3, 4
    found = trajectory(ks["solve"], ks_waves(a4=1e-8) | {"viscosity": viscosity})["u"]
    number = 2 * np.pi * wave / ks["LENGTH"]
    times = ks["TIME_STEP"] * np.arange(ks["NUM_STEPS"])
    growth = np.exp((number**2 - viscosity * number**4) * times)
    np.testing.assert_allclose(found, growth[:, None] * found[0], rtol=1e-4, atol=1e-12)


def test_ks_keeps_the_mean_and_moves_with_its_initial_state() -> None:
    ks = program("ks")
    solve = ks["solve"]
    found = trajectory(solve, ks_waves(a1=0.7, b2=0.5) | {"viscosity": 1.0})["u"]
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-12)
    # A quarter of the interval to the right: cos x becomes sin x, sin 2x becomes -sin 2x.
    moved = trajectory(solve, ks_waves(b1=0.7, b2=-0.5) | {"viscosity": 1.0})["u"]
    np.testing.assert_allclose(moved, np.roll(found, ks["NUM_NODES"] // 4, axis=1), atol=1e-8)


def gray_scott_rate(feed: float, removal: float, num_nodes: int) -> Callable[[float, Array], Array]:
    """The right-hand side for u and v in one vector, the stencil by indices."""
    row, column = np.divmod(np.arange(num_nodes**2), num_nodes)
    neighbours = [
        (row + down) % num_nodes * num_nodes + (column + right) % num_nodes
        for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0))
    ]

    def spread(field: Array) -> Array:
        return np.asarray(sum(field[it] for it in neighbours) - 4 * field)

    def rate(_: float, state: Array) -> Array:
        u, v = state.reshape(2, -1)
        return np.concatenate(
            (0.16 * spread(u) - u * v * v + feed * (1 - u), 0.08 * spread(v) + u * v * v - (feed + removal) * v)
        )

    return rate


def test_gray_scott_solves_the_equations_as_a_method_of_eighth_order_does() -> None:
    gray_scott = program("gray-scott")
    parameters = {name: float(it) for name, it in drawn("gray-scott").items()}
    found = trajectory(gray_scott["solve"], parameters)
    times = gray_scott["TIME_STEP"] * np.arange(6)
    rate = gray_scott_rate(parameters["feed"], parameters["removal"], gray_scott["NUM_NODES"])
    start = np.concatenate((found["u"][0].ravel(), found["v"][0].ravel()))
    expected = solve_ivp(rate, (0, times[-1]), start, "DOP853", times, rtol=1e-8, atol=1e-9)
    assert expected.success
    sent = np.concatenate([found[name][:6].reshape(6, -1) for name in ("u", "v")], axis=1)
    np.testing.assert_allclose(sent, expected.y.T, atol=3e-3)


def test_gray_scott_converges_with_the_second_order() -> None:
    gray_scott = program("gray-scott")
    start = gray_scott["initial_state"](drawn("gray-scott"))

    def at_forty(dt: float) -> Array:
        state = start
        for _ in range(round(40 / dt)):
            state = gray_scott["heun"](*state, 0.035, 0.06, dt)
        return np.stack(state)

    truth = at_forty(1 / 16)
    coarse, fine = (np.abs(at_forty(dt) - truth).max() for dt in (1, 1 / 2))
    assert 3.5 < coarse / fine < 4.8


def test_gray_scott_without_feed_and_removal_keeps_what_there_is() -> None:
    gray_scott = program("gray-scott")
    found = trajectory(gray_scott["solve"], drawn("gray-scott") | {"feed": np.array(0.0), "removal": np.array(0.0)})
    total = (found["u"] + found["v"]).sum(axis=(1, 2))
    np.testing.assert_allclose(total, total[0], rtol=1e-12)
    assert found["v"][-1].sum() > found["v"][0].sum()


def test_gray_scott_is_the_same_with_both_axes_exchanged() -> None:
    gray_scott = program("gray-scott")
    parameters = drawn("gray-scott")
    exchanged = parameters | {
        f"{axis}{spot}": parameters[f"{other}{spot}"] for axis, other in ("xy", "yx") for spot in range(1, 5)
    }
    found, mirrored = (trajectory(gray_scott["solve"], it) for it in (parameters, exchanged))
    np.testing.assert_allclose(mirrored["v"], found["v"].swapaxes(1, 2), atol=1e-9)


def test_advection_turns_the_phase_of_each_wave() -> None:
    advection = program("advection")
    parameters = drawn("advection") | {f"width{pulse}": np.array(0.04) for pulse in (1, 2, 3)}
    found = trajectory(advection["solve"], parameters)["u"]
    num_nodes = advection["NUM_NODES"]
    way = float(parameters["velocity"]) * advection["TIME_STEP"] * np.arange(advection["NUM_STEPS"])
    phases = np.exp(-2j * np.pi * np.outer(way, np.arange(num_nodes // 2 + 1)))
    np.testing.assert_allclose(found, np.fft.irfft(np.fft.rfft(found[0]) * phases), atol=1e-10)


def test_a_pulse_of_advection_comes_round_as_sharp_as_it_was() -> None:
    advection = program("advection")
    still = {f"{name}{pulse}": 0.1 for name in ("centre", "width", "height") for pulse in (1, 2, 3)}
    found = trajectory(advection["solve"], still | {"velocity": 1.25, "width1": 0.005, "height1": 1.0})["u"]
    np.testing.assert_allclose(found[40], found[0], atol=1e-9)
    assert not np.allclose(found[20], found[0], atol=0.1)
