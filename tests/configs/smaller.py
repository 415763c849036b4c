"""The heat studies with learners of other frameworks, so small that a test may run them twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.configs.test_studies import CONFIGS, assert_all_finished
from tests.support.runs import Run, run_study

NUM_SIMULATIONS = 5
SMALLER = {
    "study.simulations": NUM_SIMULATIONS,
    "study.fields.temperature.shape": [10, 10],
    "validation.simulations": 1,
    "simulation.command": [
        *("python", "../heat/heat.py", "--size", "10"),
        *(word for name in ("initial", "left", "right", "bottom", "top") for word in (f"--{name}", f"{{{name}}}")),
    ],
}
NETWORK = {
    "training.batch_size": 20,
    "training.draws_per_sample": 4,
    "validation.every_batches": None,
    "validation.at": [2],
}


def run_smaller(
    name: str,
    tmp_path: Path,
    settings: Mapping[str, Any],
    *,
    num_ranks: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Run:
    return run_study(
        CONFIGS / name / "study.json",
        tmp_path / "run",
        num_ranks=num_ranks,
        settings={**SMALLER, **settings},
        environment=environment,
        limit_s=100,
    )


def assert_learns_in_two_starts(name: str, tmp_path: Path, environment: Mapping[str, str] | None = None) -> Run:
    """A network learns on two ranks, and goes on from its checkpoint on one; the second run is returned."""
    begun = run_smaller(name, tmp_path, {**NETWORK, "training.max_batches": 20}, environment=environment)
    assert begun.report["exit_reason"] == "max_batches", begun.output
    done = run_smaller(name, tmp_path, NETWORK, num_ranks=1, environment=environment)
    assert done.report["restarts"] == 1
    assert_all_finished(done, num_simulations=NUM_SIMULATIONS + 1)
    (first, *_, stopped), (same_first, *_, last) = (
        [entry["loss"] for entry in run.report["validation"]] for run in (begun, done)
    )
    assert same_first == first
    # The second start goes on with what the first one has learned.
    assert max(stopped, last) < 0.7 * first
    return done
