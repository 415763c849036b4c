"""Several ranks train as one rank would on the union of their batches."""

import json
from typing import Any

import numpy as np
import pytest

from tests.mpi.running import run

JOBS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"steps": [[3, 3], [3, 1], [0, 4], [2, 0]]},
        {"steps": [[3, 3], [3, 1], [0, 4], [2, 0], [1, 1]], "training": {"accumulate": 2, "clip_norm": 0.3}},
        {"steps": [[3, 3], [3, 1]], "training": {"uneven": "stop"}, "server": "manual"},
    ],
    4: [
        {"steps": [[2, 2, 2, 2], [2, 1, 2, 2], [0, 0, 3, 0], [0, 4, 0, 1]]},
        {"steps": [[0, 2, 2, 2], [2, 0, 0, 0], [1, 0, 0, 1]], "training": {"accumulate": 3}},
    ],
}


def results(num_ranks: int, jobs: list[dict[str, Any]], implementation: str = "mpich") -> list[list[dict[str, Any]]]:
    """For each job what each rank had at its end."""
    arguments = [json.dumps(job) for job in jobs]
    ran = run("equality", num_ranks, arguments, implementation=implementation, deadline_s=90)
    assert (ran.returncode, ran.stderr) == (0, "")
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("num_ranks", "implementation"), [(2, "openmpi"), (4, "mpich")])
def test_partial_and_missing_batches_give_the_weights_of_one_rank(num_ranks: int, implementation: str) -> None:
    expected = results(1, JOBS[num_ranks])
    found = results(num_ranks, JOBS[num_ranks], implementation)
    assert len(found) == len(JOBS[num_ranks])
    for (one,), many in zip(expected, found, strict=True):
        np.testing.assert_allclose(many[0]["weights"], one["weights"], rtol=1e-12, atol=1e-14)
        assert all(other["weights"] == many[0]["weights"] for other in many)


@pytest.mark.timeout(120)
def test_module_buffers_come_from_the_lowest_rank_with_data() -> None:
    ((first, second),) = results(2, [{"steps": [[4, 4], [0, 4]], "server": "norm"}])
    assert first["own"] != second["own"]
    assert first["shared"] == second["shared"] == second["own"]
