"""For which studies the launcher lets ranks in by TCP."""

from pathlib import Path

import pytest

from stream_server.config import load
from stream_server.launcher.simulations.remote_access import RemoteAccess
from tests.support.runs import NUMPY_STUDY


@pytest.mark.parametrize(("num_nodes", "num_ranks", "is_open"), [("1", 2, False), ("2", 2, True), ("2", 1, False)])
def test_beside_the_launcher_ranks_come_by_tcp_only_if_some_are_on_other_nodes(
    num_nodes: str, num_ranks: int, is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": num_nodes, "SLURM_TASKS_PER_NODE": "2"}.items():
        monkeypatch.setenv(name, value)
    access = RemoteAccess.of(load(NUMPY_STUDY), num_ranks, tmp_path / "none.json")
    assert (access is not None) == is_open


def test_ranks_of_a_server_without_an_allocation_of_nodes_come_by_no_tcp(tmp_path: Path) -> None:
    assert RemoteAccess.of(load(NUMPY_STUDY), 2, tmp_path / "none.json") is None
