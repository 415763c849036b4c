"""Simulations of several client ranks, each of which sends its own blocks of the fields."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import Run, assert_complete

NUM_SIMULATIONS = 2
BLOCKS: dict[str, Any] = {
    "study.simulations": NUM_SIMULATIONS,
    "study.fields": {"pressure": [5, 7, 3], "signal": [8]},
    "server.class": "strict_server.py:BlocksServer",
}
# Batches of one sample, and no room but for those that simulations have under way.
SMALLEST: dict[str, Any] = {"training.batch_size": 1, "client.max_attached": 0, "client.window": "1B"}


def smallest(policy: str, max_running: int) -> dict[str, Any]:
    watermark = {} if policy == "fifo" else {"buffer.watermark": 1}
    settings = {"buffer.policy": policy, "buffer.capacity": 1 + max_running, "launcher.max_running": max_running}
    return BLOCKS | SMALLEST | watermark | settings


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_ranks", "policy", "max_running"),
    [
        (1, "fifo", 2),
        (1, "reservoir", 1),
        (2, "reservoir", 2),
        (2, "firo", 2),
        (4, "firo", 1),
        (4, "fifo", 2),
        (4, "reservoir", 2),
    ],
)
def test_parallel_simulations_never_block_each_other_in_the_smallest_buffer(
    run: Callable[..., Run], num_ranks: int, policy: str, max_running: int
) -> None:
    command = {"simulation.command": ["python", "blocks.py"]}
    done = run(num_ranks=num_ranks, settings=smallest(policy, max_running) | command)
    assert_complete(done, num_simulations=NUM_SIMULATIONS)
    assert done.account["duplicates"] == 0


@pytest.mark.full
def test_a_parallel_simulation_that_loses_a_rank_is_started_again(run: Callable[..., Run]) -> None:
    """In the smallest buffer; test_mpi_simulations.py has it in one with room."""
    command = {"simulation.command": ["python", "blocks.py", "2"]}
    done = run(settings=smallest("fifo", 2) | command)
    assert_complete(done, num_simulations=NUM_SIMULATIONS)
    assert "simulation 2, attempt 0 failed" in done.output
