"""Bytes that a stranger sends to whatever listens while ranks run that a launcher has started."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stream_server.launcher.backends.mpirun import server_ranks
from tests.security.stranger import Stranger
from tests.support.launch import alone, mpirun
from tests.support.timing import until

RANK = """
import sys, time
from pathlib import Path
from stream_server.server.ranks.communicator import MpiRanks
ranks = MpiRanks()
Path(sys.argv[1], f"there-{ranks.rank}").touch()
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
ranks.barrier()
"""
# The beginning of a message to Hydra. It ends at an assertion.
SEND = """
for port in sys.argv[1:]:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as connection:
        connection.settimeout(0.5)
        try:
            connection.sendall(b"HYD" + bytes(9))
            connection.recv(1)
        except OSError:
            pass
"""


def test_twelve_bytes_end_no_ranks(stranger: Stranger, tmp_path: Path) -> None:
    launch = alone([])
    command = [*server_ranks(2), sys.executable, "-P", "-c", RANK, str(tmp_path)]
    with subprocess.Popen(command, env=launch.environment) as job:
        try:
            until(lambda: len(list(tmp_path.glob("there-*"))) == 2)
            family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
            listening = {it.laddr for process in family for it in process.net_connections("tcp") if not it.raddr}
            ports = {it.port for it in listening if it.ip in ("0.0.0.0", "127.0.0.1")}
            stranger.run(SEND, *ports, before="import encodings.idna, socket")
        finally:
            (tmp_path / "go").touch()
        assert job.wait(60) == 0
        assert [it for it in listening if it.ip == "0.0.0.0"] == []


EMPTY = """
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    for name in sys.argv[1:]:
        sender.sendto(b"", bytes(1) + name.encode())
"""


@pytest.mark.parametrize("starter", ["ours", "mpirun"])
def test_an_empty_message_to_a_socket_of_ucx_ends_no_rank(stranger: Stranger, tmp_path: Path, starter: str) -> None:
    command = server_ranks(2) if starter == "ours" else ["mpirun", "-n", "2"]
    with subprocess.Popen(
        [*command, sys.executable, "-P", "-c", RANK, str(tmp_path)], env=alone([]).environment
    ) as job:
        try:
            until(lambda: len(list(tmp_path.glob("there-*"))) == 2)
            family = psutil.Process(job.pid).children(recursive=True)
            paths = [it.laddr for process in family for it in process.net_connections("unix")]
            names = {path.strip("\0@") for path in paths if path[:1] in ("\0", "@")}
            assert names, "UCX has such sockets"
            stranger.run(EMPTY, *names, before="import encodings.idna, socket")
        finally:
            (tmp_path / "go").touch()
        assert job.wait(60) == 0


LOOK = """
import os, sys
import psutil
from stream_server.server.ranks.communicator import MpiRanks
ranks = MpiRanks()
ports = {it.laddr.port for it in psutil.Process().net_connections("inet") if it.status == "LISTEN"}
# Ranks inherit the port of their mpirun.
ports -= {it.laddr.port for it in psutil.Process(os.getppid()).net_connections("inet")}
# At once, for mpirun puts together what ranks write as it comes.
os.write(1, f"ports {sorted(ports)} of SysV {open('/proc/self/maps').read().count('SYSV')}\\n".encode())
ranks.barrier()
assert not {"UCX_TLS", "OMPI_MCA_btl"} & os.environ.keys()
"""


@pytest.mark.parametrize("starter", ["ours", "mpich", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_ranks_on_one_node_open_no_port_and_no_memory_of_their_group(starter: str) -> None:
    """UCX writes whatever comes to its port to the address that stands in it.

    A rank of Open MPI stands still for two seconds for each connection to its port that has not said who it is.
    """
    words = ["-P", "-c", LOOK]
    launch = alone(words) if starter == "ours" else mpirun(starter, 2, words)
    command = [*server_ranks(2), *launch.argv] if starter == "ours" else launch.argv
    done = subprocess.run(command, env=launch.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # mpirun may put what two ranks say into one line.
    assert re.findall(r"ports \[.*?\] of SysV \d+", done.stdout) == ["ports [] of SysV 0"] * 2
