"""One rank alone, and what tells that there are more."""

import sys

import numpy as np
import pytest

from stream_server.machine import exit_watch
from stream_server.server.ranks.communicator import (
    SoloRanks,
    _cores_of_the_job,
    _short,
    _wait,
    environment_rank,
    ranks_from_environment,
)
from tests.fakes.thread_ranks import Aborted, ThreadRanks, on_ranks

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@pytest.fixture
def _no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_mpi")
def test_a_process_started_alone_never_loads_mpi() -> None:
    assert environment_rank() is None
    assert isinstance(ranks_from_environment(), SoloRanks)
    assert "mpi4py.MPI" not in sys.modules


@pytest.mark.usefixtures("_no_mpi")
@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_the_environment_tells_the_rank_under_each_launcher(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert environment_rank() == 3


@pytest.mark.usefixtures("_no_mpi")
def test_a_slurm_step_counts_only_with_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert environment_rank() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert environment_rank() == 2


def test_one_rank_is_its_own_sum() -> None:
    ranks = SoloRanks()
    assert (ranks.rank, ranks.size, ranks.local_rank, ranks.local_size, ranks.node) == (0, 1, 0, 1, 0)
    values = np.array([1, 2])
    total = ranks.sum(values)
    total[0] = 5
    assert values.tolist() == [1, 2]
    assert ranks.gather("x") == ["x"]
    assert ranks.broadcast({"a": 1}) == {"a": 1}


def test_thread_ranks_add_up_gather_and_broadcast() -> None:
    def talk(ranks: ThreadRanks) -> tuple[list[int], list[int] | None, str]:
        total = ranks.sum(np.array([1, ranks.rank]))
        return total.tolist(), ranks.gather(ranks.rank), ranks.broadcast(f"from {ranks.rank}", root=1)

    assert on_ranks(3, talk) == [
        ([3, 3], [0, 1, 2], "from 1"),
        ([3, 3], None, "from 1"),
        ([3, 3], None, "from 1"),
    ]


def test_an_offer_that_nobody_takes_ends_in_an_abort_of_all() -> None:
    def fail_or_wait(ranks: ThreadRanks) -> str:
        try:
            if ranks.rank == 0:
                assert ranks.offer(np.array([1]), timeout_s=0.05) is None
                ranks.abort(3)
            ranks.all_reduce(np.array([1.0]))
        except Aborted as aborted:
            return str(aborted)
        return "went on"

    assert on_ranks(2, fail_or_wait) == ["3", "3"]


def test_a_rank_that_waits_looks_around_after_each_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_server.server.ranks.communicator.SPIN_S", 0.0)
    looks: list[None] = []

    class Request:
        def Test(self) -> bool:  # noqa: N802
            return len(looks) == 3

    assert _wait(Request(), 60.0, look=lambda: looks.append(None))
    looks.clear()
    assert not _wait(Request(), 0.0)


@pytest.mark.usefixtures("_no_mpi")
def test_the_cores_of_open_mpis_mpirun_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_mpirun = {1}, {1, 2, 3}
    monkeypatch.setattr(exit_watch, "starter", lambda: 7)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set({0: own, 7: of_mpirun}[pid]))
    assert _cores_of_the_job() == own
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert _cores_of_the_job() == of_mpirun


@pytest.mark.parametrize(
    ("says", "short"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: Mon", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI", "Open MPI v5.0.11"),
    ],
)
def test_an_mpi_library_is_named_in_few_words(says: str, short: str) -> None:
    assert _short(says) == short
