"""The control round and the reductions under a real MPI."""

import json
from typing import Any

import pytest

from tests.mpi.running import run


@pytest.fixture(scope="module", params=[(2, "mpich"), (4, "openmpi")], ids=str)
def seen(request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    num_ranks, implementation = request.param
    ran = run("rounds", num_ranks, implementation=implementation)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines: dict[str, Any] = {}
    for line in ran.stdout.splitlines():
        lines |= json.loads(line)
    return num_ranks, lines


Seen = tuple[int, dict[str, Any]]


def test_all_ranks_take_the_same_batches(seen: Seen) -> None:
    num_ranks, lines = seen
    expected = [[rank + 1 if rank >= step else 0 for rank in range(num_ranks)] for step in range(num_ranks)]
    assert lines["sizes"] == [expected] * num_ranks


def test_idle_ranks_join_the_means_over_the_union_batch(seen: Seen) -> None:
    num_ranks, lines = seen
    means = []
    for step in range(num_ranks):
        active = range(step, num_ranks)
        means.append(sum(rank * (rank + 1) for rank in active) / sum(rank + 1 for rank in active))
    assert lines["means"] == [pytest.approx(means, rel=1e-12)] * num_ranks


def test_the_wish_of_one_rank_stops_all(seen: Seen) -> None:
    num_ranks, lines = seen
    assert len({tuple(stopped) for stopped in lines["stopped"]}) == 1
    assert len(lines["stopped"]) == num_ranks


def test_waiting_for_a_rank_leaves_the_core_alone(seen: Seen) -> None:
    _, lines = seen
    assert max(lines["cpu_s"][1:]) < 0.1


def test_values_travel_between_ranks(seen: Seen) -> None:
    num_ranks, lines = seen
    assert lines["words"] == [f"ünï {num_ranks - 1}"] * num_ranks
    assert lines["place"] == [[rank, num_ranks, 0, 1] for rank in range(num_ranks)]
