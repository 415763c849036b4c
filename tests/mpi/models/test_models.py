"""Whatever trains on one rank trains on several to the same weights: every kind of model against a plain loop."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mpi.models.cases import CASES
from tests.mpi.models.plain import train
from tests.mpi.models.ranks import Job, train_all
from tests.mpi.running import run

# Ranks run dry and come back, small batches follow large ones, and the last step is one sample on one rank.
STEPS = {
    1: [[4], [1], [3], [2], [4], [2], [3], [1]],
    2: [[3, 4], [4, 2], [0, 3], [3, 3], [2, 1], [2, 2], [4, 0], [0, 3], [1, 0]],
    3: [[3, 2, 4], [2, 2, 0], [0, 0, 3], [4, 3, 1], [2, 0, 2], [0, 1, 0], [3, 2, 2], [2, 0, 0]],
}
Found = dict[str, list[dict[str, Any]]]

ONE_PER_UPDATE: dict[str, Any] = {}
TWO_PER_UPDATE: dict[str, Any] = {"accumulate": 2, "clip_norm": 0.2}
LAYOUTS = [
    pytest.param(1, "mpich", TWO_PER_UPDATE, id="1 rank, accumulated"),
    pytest.param(2, "mpich", ONE_PER_UPDATE, id="2 ranks, MPICH"),
    pytest.param(3, "openmpi", TWO_PER_UPDATE, id="3 ranks, Open MPI, accumulated and clipped", marks=pytest.mark.full),
    pytest.param(2, "openmpi", TWO_PER_UPDATE, id="2 ranks, Open MPI, accumulated and clipped", marks=pytest.mark.full),
    pytest.param(3, "mpich", ONE_PER_UPDATE, id="3 ranks, MPICH", marks=pytest.mark.full),
]


def settings_of(name: str, training: dict[str, Any]) -> dict[str, Any]:
    """Those of a case; whoever steps several optimizers accumulates and clips without us."""
    return {} if CASES[name].losses else training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Found]:
    """`trained(num_ranks, mpi, training)`: what each rank has at the end, by case."""

    @cache
    def trained(num_ranks: int, mpi: str, training: str) -> Found:
        jobs = [
            {"case": name, "steps": STEPS[num_ranks], "training": settings_of(name, json.loads(training))}
            for name in CASES
        ]
        # A single rank is in this process.
        found = (
            train_all(jobs) if num_ranks == 1 else on_ranks(jobs, num_ranks, mpi, tmp_path_factory.mktemp("trained"))
        )
        return dict(zip(CASES, found, strict=True))  # type: ignore[arg-type]

    return trained


def on_ranks(jobs: list[Job], num_ranks: int, mpi: str, folder: Path) -> list[list[dict[str, Any]]]:
    """What each rank has at the end of each job."""
    # Not standard output, of which Open MPI's mpirun loses a part when lines are very long.
    found = folder / "found.json"
    ran = run("models.ranks", num_ranks, [json.dumps(jobs), str(found)], implementation=mpi, deadline_s=170)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return json.loads(found.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(("num_ranks", "mpi", "training"), LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_ranks_train_what_a_plain_loop_trains(
    trained: Callable[..., Found], name: str, num_ranks: int, mpi: str, training: dict[str, Any]
) -> None:
    ranks = trained(num_ranks, mpi, json.dumps(training))[name]
    expected = asdict(train(CASES[name], STEPS[num_ranks], **settings_of(name, training)))
    assert all(rank == ranks[0] for rank in ranks)
    for part, numbers in expected.items():
        np.testing.assert_allclose(ranks[0][part], numbers, rtol=1e-9, atol=1e-12, err_msg=part)
