"""The same study at 1, 2 and 4 ranks, under both MPIs, with each buffer."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.launch import IMPLEMENTATIONS
from tests.support.runs import Run, assert_complete

RANKS = (1, 2, 4)
POLICIES = ("fifo", "firo", "reservoir")
# Open MPI and a reservoir are below, FIFO and 1 rank in most other studies, and 4 ranks in tests/mpi. `make test-all`
# runs the whole product.
COVER = {(2, "mpich", "firo")}


def product() -> list[Any]:
    """All combinations, of which those beyond the cover are marked."""
    return [
        pytest.param(
            num_ranks,
            mpi,
            policy,
            id=f"{num_ranks}-{mpi}-{policy}",
            marks=[] if (num_ranks, mpi, policy) in COVER else pytest.mark.full,
        )
        for num_ranks in RANKS
        for policy in POLICIES
        for mpi in IMPLEMENTATIONS
    ]


@pytest.mark.parametrize(("num_ranks", "mpi", "policy"), product())
def test_a_study_ends_balanced_with_nothing_untrained(
    run: Callable[..., Run], num_ranks: int, mpi: str, policy: str
) -> None:
    """33 samples in batches of 4: neither 2 nor 4 ranks divide them, and last batches are partial."""
    settings = {"study.simulations": 3, "study.time_steps": 11, "buffer.policy": policy}
    done = run(num_ranks=num_ranks, mpi=mpi, settings=settings)
    assert_complete(done, num_simulations=3, num_steps=11)
    assert done.report["ranks"] == num_ranks


@pytest.mark.full
def test_samples_may_be_used_a_fixed_number_of_times_and_all_of_a_simulation_go_to_one_rank(
    run: Callable[..., Run],
) -> None:
    settings = {
        "study.simulations": 3,
        "buffer.policy": "reservoir",
        "buffer.routing": "simulations",
        "training.draws_per_sample": 4,
    }
    done = run(num_ranks=2, mpi="openmpi", settings=settings)
    assert_complete(done, num_simulations=3)
    assert done.report["draws"] == pytest.approx(4 * 60, abs=2 * 4)
    losses = [entry["loss"] for entry in done.report["validation"]]
    assert losses[-1] < losses[0]
