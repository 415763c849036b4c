"""Memory that ranks share goes with them, however they end."""

import contextlib
import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobSpec, JobState
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.supervision.server_job import LocalServer
from stream_server.machine.shared_memory import FOLDER, problem, segments
from tests.needs import need
from tests.support.runs import NUMPY_STUDY, start_study
from tests.support.small_disk import mounted
from tests.support.timing import until

SHARED = re.compile(r"/dev/shm/\S+")
RANKS = "from mpi4py import MPI; import time; MPI.COMM_WORLD.Barrier(); print('here', flush=True); time.sleep(600)"


def mapped(processes: Iterable[psutil.Process]) -> set[str]:
    """The files of shared memory that some processes have mapped, whether they have a name still or not."""
    return {name for it in processes for name in SHARED.findall(Path(f"/proc/{it.pid}/maps").read_text())}


def parallel(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """A command line of two ranks that know nothing of us, and its environment."""
    command = (str(Path(sys.prefix) / "bin" / "mpirun"), "-n", "2", sys.executable, "-c", RANKS)
    return command, {"PATH": os.environ["PATH"], "STREAM_CONNECTION": str(folder / "connection.json")}


def is_there(log: Path) -> bool:
    """Both ranks have left MPI_Init."""
    return log.read_text().count("here") == 2


@pytest.mark.slow
def test_a_server_of_which_everything_is_killed_leaves_no_shared_memory(tmp_path: Path) -> None:
    settings = {"simulation.command": ["python", "endless.py"], "study.time_steps": None}
    # What is killed removes no temporary folders either; a short path, for sockets will be in it.
    with (
        tempfile.TemporaryDirectory() as folder,
        start_study(
            NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings, environment={"TMPDIR": folder}
        ) as live,
    ):
        live.wait_until(lambda: "running" in live.log(0))
        shared = mapped(live.ranks)
        assert shared
        for process in live.processes():
            # A rank may have left by itself, since its mpirun is gone.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        live.process.wait()
    assert [name for name in shared if os.path.exists(name)] == []


@pytest.mark.slow
def test_a_parallel_simulation_that_is_cancelled_leaves_no_shared_memory(tmp_path: Path) -> None:
    command, environment = parallel(tmp_path)
    marks = frozenset({environment["STREAM_CONNECTION"]})
    spec = JobSpec(command=command, environment=environment, folder=tmp_path, marks=marks)
    with contextlib.closing(LocalBackend(grace_s=1.0)) as jobs:
        handle = jobs.submit(spec)
        until(lambda: (tmp_path / "output.log").exists() and is_there(tmp_path / "output.log"))
        shared = mapped(psutil.Process().children(recursive=True))
        assert shared
        jobs.cancel([handle])
        until(lambda: jobs.query([handle])[handle].state is JobState.ENDED)
    assert [name for name in shared if os.path.exists(name)] == []


@pytest.mark.slow
def test_ranks_of_a_server_that_have_not_met_yet_leave_no_shared_memory(tmp_path: Path) -> None:
    command, environment = parallel(tmp_path)
    log = tmp_path / "output.log"
    job = LocalServer.start(["sh", "-c", 'exec "$@" >"$0"', str(log), *command], environment, str(tmp_path))
    until(lambda: log.exists() and is_there(log))
    shared = mapped(psutil.Process().children(recursive=True))
    assert shared
    job.kill(time.monotonic())
    until(lambda: job.look(time.monotonic()) or job.is_over)
    assert [name for name in shared if os.path.exists(name)] == []


@pytest.mark.slow
def test_a_start_without_room_for_what_the_ranks_share_is_refused(tmp_path: Path) -> None:
    """MPICH ends with a bus error then; four ranks need 21 MB of it, and two 2 MB."""
    need("a small disk")
    few, many, started = (
        subprocess.run(
            mounted(
                Path("/dev/shm"),
                num_bytes=4 * 2**20,
                command=[
                    *(sys.executable, "-m", "stream_server.launcher.supervision.cli", "--config", str(NUMPY_STUDY)),
                    *(f"--set=study.output_dir={tmp_path / 'run'}", f"--set=server.ranks={num_ranks}", *options),
                ],
            ),
            capture_output=True,
            text=True,
        )
        for num_ranks, options in ((2, ["--check"]), (4, ["--check"]), (4, []))
    )
    assert few.returncode == 0, few.stderr
    assert many.returncode == started.returncode == ConfigError.exit_code
    for done in (many, started):
        assert "server.ranks: /dev/shm has 4.0 MiB free, and 4 ranks of MPICH share 20.6 MiB there" in done.stderr


def test_memory_that_is_shared_is_known_by_its_file_and_told_if_others_may_open_it() -> None:
    with tempfile.NamedTemporaryFile(dir=FOLDER) as file:
        file.truncate(mmap.PAGESIZE)
        assert file.name not in {it.path for it in segments()}
        with mmap.mmap(file.fileno(), mmap.PAGESIZE):
            (found,) = (it for it in segments() if it.path == file.name)
            status = os.fstat(file.fileno())
            assert (found.device, found.inode) == (status.st_dev, status.st_ino)
            assert found.status is not None
            assert problem() == ""
            os.fchmod(file.fileno(), 0o666)
            assert f"by {file.name}, which is open to others (mode 0666)" in problem()
