"""A training listens nowhere but where the study says, and what its ranks find each other by is in a private folder."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.support.failpoints import failpoints
from tests.support.runs import NUMPY_STUDY, assert_complete, start_study

OF_MPIRUN = ("mpi", "hydra", "prte", "orte")


def listening(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses on which they listen."""
    connections = [it for process in processes for it in process.net_connections("inet")]
    return {f"{it.laddr.ip}:{it.laddr.port}" for it in connections if it.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_two_ranks_that_train_on_one_node_listen_on_loopback_alone_if_the_study_says_so(tmp_path: Path) -> None:
    settings = {
        "study.simulations": 2,
        "server.class": "torch_server.py:TinyServer",
        "network.interface": "lo",
    }
    # The last is for what MPICH itself listens on.
    environment = failpoints(tmp_path / "met", "server.trained=stop") | {"UCX_NET_DEVICES": "lo"}
    with start_study(NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings, environment=environment) as live:
        live.wait_until((tmp_path / "met" / "server.trained").exists)
        ranks = live.ranks
        # Ranks inherit the port of their mpirun.
        of_mpirun = listening(it for it in ranks[0].parents() if it.name().startswith(OF_MPIRUN))
        found = listening(ranks) - of_mpirun
        for rank in ranks:
            os.kill(rank.pid, signal.SIGCONT)
        run = live.end(50)
    assert_complete(run, num_simulations=2)
    assert len(found) >= 4, "the sockets of two ranks, and of their gradients"
    assert {address for address in found if not address.startswith("127.")} == set()
