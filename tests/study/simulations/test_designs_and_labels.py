"""The parameters of simulations, and the time steps that they send."""

import csv
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import Run, assert_complete

# Compares every sample with the parameters that the server knows.
STRICT: dict[str, Any] = {"study.simulations": 3, "server.class": "strict_server.py:RippleServer"}


def parameters(run: Run) -> list[dict[str, float]]:
    with (run.output_dir / "parameters.csv").open() as file:
        return [{name: float(row[name]) for name in ("offset", "slope")} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("sampler", "more"),
    [
        pytest.param("lhs", {"buffer.capacity": "4kB"}, marks=pytest.mark.full),
        pytest.param("sobol", {"network.security": "none"}, marks=pytest.mark.full),
        pytest.param("halton", {}, marks=pytest.mark.full),
    ],
)
def test_parameters_can_be_spread_evenly(run: Callable[..., Run], sampler: str, more: dict[str, Any]) -> None:
    done = run(num_ranks=2, settings=STRICT | more | {"parameters.sampler": sampler})
    assert_complete(done, num_simulations=3)
    assert len({row["offset"] for row in parameters(done)}) == 4


@pytest.mark.full
def test_parameters_come_from_a_file_and_go_into_templates_and_time_steps_have_a_first_a_last_and_a_distance(
    run: Callable[..., Run],
) -> None:
    settings = {
        "parameters": {"file": "design.csv"},
        "simulation.command": ["python", "from_files.py", "input.txt"],
        "simulation.templates": ["input.txt"],
        "study.time_steps": {"first": 2, "last": 17, "every": 3},
        "buffer.policy": "reservoir",
        "network.security": "none",
    }
    done = run(settings=STRICT | settings)
    assert_complete(done, num_simulations=3, num_steps=6)
    assert sorted(row["offset"] for row in parameters(done)) == [-1.0, -0.7, -0.4, -0.1]


def test_parameters_come_from_a_class_of_the_user_and_time_steps_that_nobody_knows_need_not_be_contiguous(
    run: Callable[..., Run],
) -> None:
    """The simulations 1 to 3 send 7, 6 and 7 of the steps 0 to 19."""
    settings = {
        "study.simulations": 3,
        "study.time_steps": None,
        "simulation.command": ["python", "sparse.py"],
        "parameters.sampler": "sampler.py:Diagonal",
    }
    done = run(settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.account["expected"] == done.account["trained"] == 20
    assert all(row["offset"] == row["slope"] for row in parameters(done))
    # The class ignores its seed.
    [warning] = [it for it in done.report["warnings"] if "held-out" in it]
    assert "1 of 1 held-out simulation has the same parameters as simulations that are trained on" in warning
    assert f"WARNING: {warning.removeprefix('rank 0: ')}" in done.output
