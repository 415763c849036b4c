"""The cores of a node, shared out to simulations and server ranks."""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from stream_server.built_in import BACKENDS
from stream_server.machine import cgroups
from stream_server.server.commands.check import describe
from stream_server.server.run.cores import (
    NO_SIMULATIONS,
    Cores,
    NodeCores,
    SimulationCores,
    share_cores,
    simulation_cores,
    threads_of_rank,
    wait_passively,
)
from stream_server.server.run.start import StartOptions
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.studies import StudyFolder

TWO_SIMULATIONS = SimulationCores(num=2, cores_each=1)


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.mark.parametrize(
    ("num_cores", "num_bound", "num_ranks", "expected"),
    [
        (2, 2, 1, 1),
        (2, 2, 4, 1),
        (3, 3, 1, 1),
        (4, 4, 1, 2),
        (16, 16, 1, 14),
        (16, 16, 4, 3),
        (16, 1, 4, 1),
    ],
)
def test_ranks_share_the_cores_that_the_simulations_leave(
    num_cores: int, num_bound: int, num_ranks: int, expected: int
) -> None:
    found = threads_of_rank(TWO_SIMULATIONS, num_cores=num_cores, num_bound=num_bound, num_ranks=num_ranks)
    assert found == expected


def test_without_simulations_the_ranks_have_all_cores() -> None:
    assert threads_of_rank(NO_SIMULATIONS, num_cores=16, num_bound=16, num_ranks=4) == 4


@pytest.mark.parametrize(
    ("changes", "environment", "expected"),
    [
        ({}, {}, SimulationCores(num=1, cores_each=1)),
        ({"launcher.max_running": 3}, {}, SimulationCores(num=3, cores_each=1)),
        ({"simulation.job.cores_per_rank": 2}, {}, SimulationCores(num=1, cores_each=2)),
        ({"simulation.ranks": 3, "simulation.job.cores_per_rank": 2}, {}, SimulationCores(num=1, cores_each=6)),
        ({}, {"OMP_NUM_THREADS": "4"}, SimulationCores(num=1, cores_each=4)),
        ({"simulation.job.cores_per_rank": 2}, {"OMP_NUM_THREADS": "1"}, SimulationCores(num=1, cores_each=2)),
        (
            {"simulation.job.environment": {"OMP_NUM_THREADS": "2"}},
            {"OMP_NUM_THREADS": "4"},
            SimulationCores(num=1, cores_each=2),
        ),
        ({"study.simulations": 5, "launcher.max_running": 8}, {}, SimulationCores(num=5, cores_each=1)),
    ],
)
def test_simulations_take_the_cores_of_their_ranks_or_threads(
    folder: StudyFolder, changes: dict[str, Any], environment: dict[str, str], expected: SimulationCores
) -> None:
    assert SimulationCores.of(folder.load(changes), environment) == expected


def test_simulations_that_attach_by_themselves_take_none(folder: StudyFolder) -> None:
    assert SimulationCores.of(folder.load({"simulation.command": None}), {}) == NO_SIMULATIONS


@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"local", "slurm-steps"}))
def test_simulations_that_are_jobs_of_a_scheduler_take_none_of_the_servers_cores(
    folder: StudyFolder, backend: str
) -> None:
    assert SimulationCores.of(folder.load({"launcher.backend": backend}), {}) == NO_SIMULATIONS


def test_what_stream_launcher_adds_for_the_server_is_not_for_the_simulations(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    config = folder.load({"server.job.environment": {"OMP_NUM_THREADS": "4"}})
    assert simulation_cores(config, StartOptions(link="ipc://launcher")).cores_each == 1
    assert simulation_cores(config, StartOptions()).cores_each == 4


def test_a_replay_has_no_simulations(folder: StudyFolder, tmp_path: Path) -> None:
    assert simulation_cores(folder.load(), StartOptions(replay=tmp_path)) == NO_SIMULATIONS


def shared(monkeypatch: pytest.MonkeyPatch, *, num_ranks: int, num_cores: int) -> Cores:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cores)))
    monkeypatch.setattr(ThreadRanks, "num_cores", num_cores)
    first, *others = on_ranks(num_ranks, lambda ranks: share_cores(ranks, TWO_SIMULATIONS))
    assert all(other == first for other in others)
    return first


def test_the_split_is_told_and_is_the_same_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one = shared(monkeypatch, num_ranks=1, num_cores=2)
    assert str(one) == "2: 2 simulations × 1, 1 rank × 1 thread"
    two = shared(monkeypatch, num_ranks=2, num_cores=8)
    assert str(two) == "8: 2 simulations × 1, 2 ranks × 3 threads"
    assert two.threads == (3, 3)
    assert two.warnings == []


def test_omp_num_threads_of_the_user_wins_over_the_share_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert shared(monkeypatch, num_ranks=2, num_cores=8).threads == (5, 5)


def test_more_threads_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = shared(monkeypatch, num_ranks=4, num_cores=2)
    [warning] = found.warnings
    assert "take 6 cores of 2" in warning
    [node] = found.to_report()
    assert node == {
        "cores": 2,
        "simulations": 2,
        "cores_per_simulation": 1,
        "threads": (1, 1, 1, 1),
        "oversubscribed": True,
    }


def test_nodes_without_simulations_are_left_to_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def share(ranks: ThreadRanks) -> Cores:
        ranks.node, ranks.local_size, ranks.num_cores = ranks.rank, 1, 8
        return share_cores(ranks, TWO_SIMULATIONS)

    found, _ = on_ranks(2, share)
    assert str(found) == "8: 2 simulations × 1, 1 rank × 6 threads; 8: 1 rank × 8 threads"


def test_other_numbers_of_threads_after_a_restart_are_told() -> None:
    now = Cores(threads=(1, 1))
    assert now.change_since([1, 1]) == ""
    assert now.change_since([1]) == ""
    assert now.change_since([2, 2]).startswith("each rank computes with 1 thread now, but with 2 threads before")


SERVER = """
from stream_server import StreamServer

class HeatServer(StreamServer):
    process_simulation_data = training_step = validation_step = lambda self, *args: None
"""


def test_check_shows_the_split_and_warns(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(cgroups, "cpu_quota", lambda: math.inf)
    folder.write("server.py", SERVER)
    told = describe(folder.load({"server.ranks": 2}))
    [line] = [line for line in told.splitlines() if line.startswith("cores ")]
    assert "2: 1 simulation × 1, 2 ranks × 1 thread; simulations and server ranks take 3 cores of 2" in line


def test_what_a_node_has_left_is_no_warning() -> None:
    node = NodeCores(cores=4, simulations=2, cores_per_simulation=1, threads=(2,))
    assert (node.num_taken, node.warning) == (4, "")


@pytest.mark.parametrize(
    ("threads", "cores", "expected"), [((2, 2), 2, "passive"), ((1, 1), 1, None), ((2, 2), 4, None)]
)
def test_threads_sleep_while_they_wait_where_there_are_too_few_cores(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...], cores: int, expected: str | None
) -> None:
    monkeypatch.setattr(os, "environ", {})
    wait_passively(NodeCores(cores=cores, simulations=0, cores_per_simulation=0, threads=threads))
    assert os.environ.get("OMP_WAIT_POLICY") == expected


def test_the_wait_policy_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_WAIT_POLICY": "active"})
    wait_passively(NodeCores(cores=1, simulations=0, cores_per_simulation=0, threads=(2,)))
    assert os.environ == {"OMP_WAIT_POLICY": "active"}
