"""Simulations on another node, and the cable to it is cut."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.chaos.plan import Plan
from tests.faults.network.node import Node
from tests.faults.network.partitions import LIMIT_S, DistantStudy, endure_partition, num_trained
from tests.study.simulations.test_attaching import NOBODY_LAUNCHES
from tests.support.runs import NUMPY_STUDY, start_study

SAVED = 75
ATTACHED = NUMPY_STUDY.parent / "attached.py"


@pytest.mark.full
def test_a_partition_of_seconds_is_waited_for(tmp_path: Path) -> None:
    assert endure_partition("0", 3.0, tmp_path) == []


@pytest.mark.full
def test_simulations_that_make_no_progress_behind_a_partition_are_started_again(tmp_path: Path) -> None:
    plan = Plan(seed="0", num_simulations=4, num_steps=40)
    with Node() as node:
        study = DistantStudy(plan=plan, node=node, settings={"simulation.timeout_s": 3, "server.ranks": 1})
        with study.start(tmp_path) as live:
            live.wait_until(lambda: num_trained(live))
            node.cut()
            live.wait_until(lambda: list(live.output_dir.glob("simulations/*/attempt-1")), LIMIT_S)
            node.reconnect()
            done = live.end(LIMIT_S)
        assert list(study.violations(done)) == []
        assert max(done.attempts.values()) > 1


def test_a_simulation_that_is_cut_off_for_longer_than_its_study_allows_says_so(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Node() as node:
        settings = NOBODY_LAUNCHES | {"client.if_server_away": "stop", "network.interface": node.here}
        with start_study(NUMPY_STUDY, tmp_path / "run", mpi=None, settings=settings) as live:
            live.wait_until(live.connection.exists)
            command = node.command(sys.executable, str(ATTACHED), str(live.connection), "2", str(go))
            client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert client.stdout is not None
            assert client.stdout.readline() == "half-way\n"
            node.cut()
            go.touch()
            _, complaint = client.communicate(timeout=120)
            assert client.returncode == 1
            assert f"Unreachable: simulation 0 rank 0 waits for server rank 0 at tcp://{node.here}:" in complaint
            assert "no word for 2 s" in complaint
            live.process.send_signal(signal.SIGTERM)
            assert live.end().exit_code == SAVED
