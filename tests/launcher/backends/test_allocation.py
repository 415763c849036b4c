"""The number of ranks of a server that takes what there is room for."""

from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.backends.allocation import Allocation, ServerSize
from tests.support.studies import StudyFolder

STEPS = {"launcher.backend": "slurm-steps", "launcher.max_running": 4, "server.ranks": {"min": 2, "max": 8}}


def allocation(tasks: str, nodes: int, cores: int = 1) -> dict[str, str]:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_TASKS_PER_NODE": tasks}
    return environment | ({"SLURM_CPUS_PER_TASK": str(cores)} if cores > 1 else {})


def size(folder: Path, changes: dict[str, Any], environment: dict[str, str]) -> ServerSize:
    return ServerSize.of(StudyFolder(folder).load(changes), environment)


@pytest.mark.parametrize(
    ("tasks", "num_nodes", "num_tasks"),
    [("4", 1, 4), ("3(x2)", 2, 6), ("3(x2),1", 3, 7), ("2,1(x3)", 4, 5), ("", 2, 2)],
)
def test_the_tasks_of_an_allocation_are_those_of_its_nodes(tasks: str, num_nodes: int, num_tasks: int) -> None:
    assert Allocation.found(allocation(tasks, num_nodes)) == Allocation(num_nodes=num_nodes, num_tasks=num_tasks)


def test_outside_of_slurm_there_is_no_allocation() -> None:
    assert Allocation.found({}) is None
    assert Allocation.found({"SLURM_TASKS_PER_NODE": "3", "SLURM_JOB_NUM_NODES": "1"}) is None


@pytest.mark.parametrize(
    ("tasks", "nodes", "cores", "num_ranks"),
    [("6(x2)", 2, 1, 8), ("5(x2)", 2, 1, 6), ("5", 1, 1, 2), ("2", 1, 1, 2), ("2(x2)", 2, 2, 2), ("4(x2)", 2, 2, 6)],
)
def test_the_server_has_what_simulations_leave_of_the_allocation_within_its_range(
    tmp_path: Path, tasks: str, nodes: int, cores: int, num_ranks: int
) -> None:
    assert size(tmp_path, STEPS, allocation(tasks, nodes, cores)).num_ranks == num_ranks


def test_simulations_with_jobs_of_their_own_take_nothing_of_it(tmp_path: Path) -> None:
    jobs = STEPS | {"launcher.backend": "slurm"}
    assert size(tmp_path, jobs, allocation("3(x2)", 2)).num_ranks == 6


def test_a_number_of_ranks_is_that_number_whatever_the_allocation(tmp_path: Path) -> None:
    assert size(tmp_path, STEPS | {"server.ranks": 16}, allocation("1", 1)) == ServerSize(num_ranks=16, num_on_node=16)
    assert size(tmp_path, STEPS | {"server.ranks": 5}, allocation("3(x2)", 2)) == ServerSize(num_ranks=5, num_on_node=3)


def test_an_allocation_with_less_than_the_smallest_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the allocation has 1 tasks, but min is 2\. Ask for more \(`sbatch --ntasks`\)"
    ):
        size(tmp_path, STEPS, allocation("1", 1))
    with pytest.raises(ConfigError, match=r"this node has \d+ cores, but min is 4096"):
        size(tmp_path, {"server.ranks": {"min": 4096, "max": 5000}}, {})


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (0, "server.ranks: 0 is not a number of ranks. Write 1 or more, or"),
        ("4", 'server.ranks: "4" is not a number of ranks'),
        ({"min": 4, "max": 2}, "server.ranks: min (4) is above max (2)"),
        ({"min": 4}, "server.ranks.max"),
        ({"min": 0, "max": 2}, "server.ranks.min"),
        ({"most": 2, "max": 2}, "server.ranks.most"),
    ],
    ids=str,
)
def test_nonsense_is_refused_in_words(tmp_path: Path, ranks: Any, told: str) -> None:
    assert told in StudyFolder(tmp_path).problem({"server.ranks": ranks})
