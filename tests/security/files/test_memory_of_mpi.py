"""Shared memory of MPI that a stranger has made beforehand, and what passes through it."""

import json
import mmap
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ConfigError
from stream_server.machine import shared_memory
from stream_server.machine.interpreter import python_command
from stream_server.server.checkpoint.continuation import find_continuation
from stream_server.server.run.output import OutputFolder
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.security.stranger import Stranger
from tests.support.launch import mpirun
from tests.support.studies import StudyFolder

# As MPICH's ranks on a node call it (the name of the job, hashed), if their mpirun is started in the next seconds;
# READY is what the rank that makes the segment writes once it may be used.
MAKE_SEGMENTS = """
pid, host = int(sys.argv[1]), sys.argv[2]
os.umask(0)
names = []
for second in range(int(time.time()), int(time.time()) + 30):
    libc.srand(second)
    hashed = 2166136261
    for letter in f"kvs_{pid}_0_{libc.rand()}_{host}".encode():
        hashed = (hashed ^ letter) * 16777619 & 0xffffffff
    names.append(f"/dev/shm/mpich_shm_{hashed:x}_0")
    with open(names[-1], "xb") as file:
        file.write(bytes(8) + (0x12345678).to_bytes(4, "little"))
        file.truncate(8 << 20)
print("made", flush=True)
sys.stdin.read()
for name in names:
    # MPI_Finalize may remove it where the victim is root.
    if os.path.exists(name):
        os.unlink(name)
"""
MAKE_ONE = """
os.umask(0)
with open(sys.argv[1], "xb") as file:
    file.truncate(4096)
print("made", flush=True)
sys.stdin.read()
if os.path.exists(sys.argv[1]) and os.stat(sys.argv[1]).st_uid == os.getuid():
    os.unlink(sys.argv[1])
"""


@contextmanager
def made_by(stranger: Stranger, script: str, *arguments: object, before: str = "") -> Iterator[None]:
    """Within, what the script makes is there."""
    with stranger.start(script, *arguments, before=before) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        yield
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        yield


@pytest.fixture
def name() -> Iterator[Path]:
    path = Path(f"/dev/shm/mpich_shm_{secrets.token_hex(8)}_0")
    yield path
    path.unlink(missing_ok=True)


def test_ranks_end_in_words_where_a_stranger_has_made_the_memory_that_they_share(stranger: Stranger) -> None:
    launch = mpirun("mpich", 2, python_command("-m", "stream_server.doctor.rank")[1:])
    wait = ["sh", "-c", 'echo $$; read line; exec "$@"', "sh"]
    with subprocess.Popen(
        [*wait, *launch.argv], env=launch.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        pid = int(job.stdout.readline())
        before = "import ctypes, time; libc = ctypes.CDLL(None)"
        with made_by(stranger, MAKE_SEGMENTS, pid, socket.gethostname(), before=before):
            told, _ = job.communicate("\n", timeout=120)
    # mpirun may put what two ranks say into one line.
    assert len(re.findall(r"MPI shares memory .*? /dev/shm/mpich_shm_\w+_0, which belongs to user \d+", told)) == 2, (
        told
    )


def test_memory_of_a_stranger_is_not_ours_and_its_name_is_not_removed(stranger: Stranger, name: Path) -> None:
    with made_by(stranger, MAKE_ONE, name), mapped(name):
        assert f"{name}, which belongs to user" in shared_memory.problem()
        shared_memory.remove(shared_memory.names_of())
        assert name.exists()


def test_nor_is_it_once_he_has_taken_its_name_away(stranger: Stranger, name: Path) -> None:
    with made_by(stranger, MAKE_ONE, name), mapped(name):
        stranger.run("os.unlink(sys.argv[1])", name)
        assert f"{name}, which has no name any more" in shared_memory.problem()
        # Another file under that name says nothing of the one that is mapped.
        name.touch(mode=0o600)
        assert f"{name}, which has no name any more" in shared_memory.problem()
        assert shared_memory.names_of() == set()


@pytest.mark.parametrize(("mode", "found"), [(0o600, ""), (0o640, r"mode 0640"), (0o602, r"mode 0602")])
def test_memory_of_ours_is_ours_alone_unless_it_is_open_to_others(name: Path, mode: int, found: str) -> None:
    name.write_bytes(bytes(4096))
    name.chmod(mode)
    with mapped(name):
        assert (found in shared_memory.problem()) if found else (shared_memory.problem() == "")


@pytest.mark.slow
def test_open_mpi_makes_its_memory_in_a_folder_that_only_we_can_enter() -> None:
    script = (
        "from stream_server.machine.shared_memory import segments; import os\n"
        "from stream_server.server.ranks import communicator\n"
        "problem, communicator.shared_memory.problem = communicator.shared_memory.problem, lambda: print(\n"
        "    *(f'{it.path} {os.stat(os.path.dirname(it.path)).st_mode & 0o777:o}' for it in segments()\n"
        "      if 'segment.' in it.path), sep='\\n', flush=True)\n"
        "communicator.MpiRanks()\n"
    )
    launch = mpirun("openmpi", 2, ["-c", script])
    told = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    places = [line.split() for line in told.stdout.splitlines() if line]
    assert len(places) == 4
    for place, mode in places:
        assert place.startswith("/dev/shm/stream-segments-")
        assert mode == "700"
        assert not Path(place).parent.exists()


class Overheard(ThreadRanks):
    """Ranks that note what they tell each other."""

    def __init__(self, ranks: ThreadRanks) -> None:
        super().__init__(ranks._job, ranks.rank)
        self.said: list[str] = []

    def _meet(self, meeting: Any, value: Any) -> list[Any]:
        met = super()._meet(meeting, value)
        self.said += [json.dumps(it, default=str) for it in met]
        return met


def test_no_secret_passes_through_mpi_and_none_stays_in_a_file(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path / "heat").load()
    folder = OutputFolder(config.output_dir)
    folder.path.mkdir(parents=True)

    def find(ranks: ThreadRanks) -> tuple[Any, list[str]]:
        overheard = Overheard(ranks)
        return find_continuation(config, overheard, folder).identity, overheard.said

    (identity, said), (other, _) = on_ranks(2, find)
    assert identity == other
    assert said
    for keys in identity.server_keys, identity.operator_keys, identity.attaching_keys:
        assert not any(keys.secret in it for it in said)
        assert not any(keys.secret in it.read_text() for it in folder.path.rglob("*") if it.is_file())


def test_a_rank_that_does_not_see_the_folder_of_the_run_says_what_it_needs(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path / "heat").load()
    folders = [OutputFolder(config.output_dir), OutputFolder(tmp_path / "other-node")]
    folders[0].path.mkdir(parents=True)

    def find(ranks: ThreadRanks) -> None:
        with pytest.raises(ConfigError, match=r"identity\.json, .*cannot be read on this node .*that all nodes see"):
            find_continuation(config, ranks, folders[ranks.rank])

    on_ranks(2, find)
    assert not folders[0].identity.exists()
