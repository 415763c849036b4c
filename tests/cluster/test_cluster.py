"""The cluster that the tests use is one: hosts of their own, and a scheduler that runs jobs on them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.needs import need
from tests.support.cluster import PROJECT, Cluster
from tests.support.timing import until

pytestmark = pytest.mark.slow


def test_hosts_have_their_own_names_processes_and_temporary_files(cluster: Cluster) -> None:
    assert cluster.run("login", "srun", "-N2", "hostname").split() != ["n1", "n1"]
    cluster.run("n1", "touch", "/tmp/here", "/dev/shm/here")
    assert cluster.run("n2", "ls", "/tmp", "/dev/shm").count("here") == 0
    cluster.run("n1", "rm", "/tmp/here", "/dev/shm/here")
    assert len(cluster.run("n2", "ps", "-e", "-o", "comm=").split()) < 10


def test_nodes_and_the_controller_come_back() -> None:
    with Cluster() as cluster:
        cluster.stop_controller()
        cluster.lose("n2")
        cluster.start_controller()
        cluster.start_host("n2")
        cluster.wait_for_nodes()
        assert cluster.run("login", "srun", "-w", "n2", "hostname") == "n2\n"


def test_a_cable_that_is_pulled_cuts_a_host_off_until_it_is_plugged_in(cluster: Cluster) -> None:
    ping = [*cluster.on("n1"), "python3", "-c", "import socket; socket.create_connection(('n2', 6818), 0.2)"]
    cluster.cut("n2")
    assert subprocess.run(ping, capture_output=True).returncode != 0
    cluster.reconnect("n2")
    until(lambda: subprocess.run(ping, capture_output=True).returncode == 0)


KILLED = """
import sys, time
from tests.support.cluster import Cluster
with Cluster(1) as cluster:
    print(cluster.folder, flush=True)
    time.sleep(60)
"""


def test_nothing_of_a_cluster_outlives_a_process_that_is_killed() -> None:
    need("a cluster")
    before = _links()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], env=os.environ | {"PYTHONPATH": str(PROJECT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
    until(lambda: not _using(folder))
    assert _links() == before
    subprocess.run(["rm", "-r", str(folder)], check=True)


def _links() -> list[str]:
    return sorted(it.name for it in Path("/sys/class/net").iterdir())


def _using(folder: Path) -> list[psutil.Process]:
    """The processes that have the folder on their command line, or in it their working folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd().startswith(str(folder)) or any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found
