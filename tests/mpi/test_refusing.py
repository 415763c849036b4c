"""A rank that refuses to start before it has come to MPI, in which the others wait for it."""

import subprocess
from pathlib import Path

import pytest

from stream_server.errors import ConfigError, RankLost
from stream_server.messages.curve import KeyPair
from stream_server.messages.launcher_endpoint import LauncherEndpoint
from tests.needs import need
from tests.support.launch import IMPLEMENTATIONS, mpirun
from tests.support.runs import NUMPY_STUDY

LIMIT_S = 100.0
# Nothing else is known of it, and nobody is there who would be asked.
NODE = ["unshare", "--net", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh"]
UNREACHABLE = "tcp://192.0.2.1:9"


def refused(mpi: str, folder: Path, place: Path, *, on: list[str]) -> "subprocess.CompletedProcess[str]":
    """A server of two ranks, as a launcher starts it, the second of which is to find the launcher by this file."""
    words = [
        "-c",
        "import sys; from stream_server.server.commands.cli import main; sys.exit(main())",
        "--config",
        str(NUMPY_STUDY),
    ]
    words += [f"--set=study.output_dir={folder / 'run'}", "--set=server.ranks=2", f"--link=ipc://{folder / 'l'}"]
    launch = mpirun(mpi, 1, words)
    second = [":", "-n", "1", *on, *launch.argv[-len(words) - 1 :], f"--launcher-endpoint={place}"]
    return subprocess.run(
        [*launch.argv, *second], env=launch.environment, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
def test_one_that_finds_no_file_of_the_launcher_ends_all_and_says_why(tmp_path: Path, mpi: str) -> None:
    done = refused(mpi, tmp_path, tmp_path / "missing.json", on=[])
    assert done.returncode == ConfigError.exit_code
    assert "rank 1 on node" in done.stderr
    assert "missing.json of stream-launcher cannot be read on this node" in done.stderr


def test_one_that_cannot_reach_the_launcher_ends_all_and_says_why(tmp_path: Path) -> None:
    need("another node")
    place = LauncherEndpoint(host="launchers", link=UNREACHABLE, alive=UNREACHABLE, keys=KeyPair.make())
    place.write(tmp_path / "place.json")
    done = refused("mpich", tmp_path, tmp_path / "place.json", on=NODE)
    assert done.returncode == RankLost.exit_code
    told = "stream-server: rank 1 on node elsewhere: stream-launcher cannot be reached at tcp://192.0.2.1:9"
    assert done.stderr.count(told) == 1
