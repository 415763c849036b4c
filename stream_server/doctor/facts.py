"""The facts about a machine that the doctor gathers. Only `gather` of each class touches the machine.

torch and MPI are tried in processes of their own: whatever they do there, hang or crash, becomes a fact.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import stream_server
from stream_server.config import StudyConfig
from stream_server.launcher.backends.allocation import ServerSize
from stream_server.launcher.backends.environment import mpirun_environment, scrubbed
from stream_server.launcher.backends.mpirun import server_ranks
from stream_server.machine import private_folder
from stream_server.machine.cgroups import within_quota
from stream_server.machine.interpreter import python_command
from stream_server.server.run.plan import MemoryLimit, free_on_node, limit_of_node

COMMAND = "stream-server"
NUM_RANKS = 2
CONNECT_S = 3.0
TORCH_LIMIT_S = 120.0
MPI_LIMIT_S = 60.0
MPIRUN_LIMIT_S = 60.0
SCHEDULERS = {"sbatch": "Slurm", "qsub": "PBS or Grid Engine", "bsub": "LSF", "flux": "Flux", "oarsub": "OAR"}
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "JOB_ID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID")
RANK = python_command("-m", "stream_server.doctor.rank")
SHARED_MEMORY = "/dev/shm"  # noqa: S108
GPUS = ("/dev/nvidia0", "/dev/kfd")

_DECODER = json.JSONDecoder()

# torch may be imported in the training only, and here in no process that goes on.
TORCH = """
import json, torch
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "gpu_build": torch.version.cuda or torch.version.hip, "gpus": names}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonFacts:
    """The interpreter; `command` is the stream-server on the PATH, which may belong to another one."""

    version: tuple[int, ...]
    prefix: str
    package: str
    command: str | None
    is_own_command: bool

    @classmethod
    def gather(cls) -> Self:
        command = shutil.which(COMMAND)
        folders = {sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")}
        own = {Path(folder, COMMAND).resolve() for folder in folders}
        return cls(
            version=tuple(sys.version_info[:3]),
            prefix=sys.prefix,
            package=f"{version(COMMAND)} in {Path(stream_server.__file__).parent}",
            command=command,
            is_own_command=command is not None and Path(command).resolve() in own,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """torch, or the `error` with which it cannot be imported. `gpu_build` is the CUDA or ROCm that it was built for."""

    version: str = ""
    gpu_build: str | None = None
    gpus: tuple[str, ...] = ()
    error: str = ""
    node_has_gpu: bool = False
    num_cores: int = 1

    @classmethod
    def gather(cls) -> Self:
        done = run(python_command("-c", TORCH), TORCH_LIMIT_S)
        told = done.answers[0] if done.answers else {}
        return cls(
            version=told.get("version", ""),
            gpu_build=told.get("gpu_build"),
            gpus=tuple(told.get("gpus", ())),
            error="" if told else done.last_line,
            node_has_gpu=any(Path(device).exists() for device in GPUS),
            num_cores=within_quota(len(os.sched_getaffinity(0))),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiFacts:
    """The MPI that mpi4py loads, the `start` of the command by which ranks were tried, and what the ranks said.

    `start` is None where there is no mpirun; `other_starter` is another program that starts ranks. `sizes` are those of
    the worlds in which the ranks found themselves, `problem` is what the server would say here, and `failure` the last
    output of a job that failed. `shared_bytes` are free for the memory that ranks share, None where that is unknown.
    """

    mpi: str = ""
    start: str | None = None
    num_ranks: int = NUM_RANKS
    sizes: tuple[int, ...] = ()
    problem: str = ""
    failure: str = ""
    other_starter: str | None = None
    slurm_job: str = ""
    shared_bytes: int | None = None

    @property
    def is_one_world(self) -> bool:
        return self.sizes == (self.num_ranks,) * self.num_ranks

    @classmethod
    def gather(cls, config: StudyConfig | None = None) -> Self:
        """Start ranks as one types it here and as stream-launcher does; the first of them that fails is told.

        Raises:
            ConfigError: the ranks of the study have no room in this allocation, or a program is missing.
        """
        alone = run([*RANK, "--name"], MPI_LIMIT_S)
        told = alone.answers[0] if alone.answers else {"problem": alone.last_line}
        tried = cls(
            mpi=told.get("mpi", ""),
            problem=told.get("problem", ""),
            other_starter=shutil.which("srun") or shutil.which("flux"),
            slurm_job=os.environ.get("SLURM_JOB_ID", ""),
            shared_bytes=shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else None,
        )
        if not tried.mpi:
            return tried
        good = []
        with private_folder.temporary() as folder:
            for start in _starts(config, str(folder)):
                ranks = tried._with_ranks(*start)
                if not ranks.is_one_world:
                    return ranks
                good.append(ranks)
        return good[0] if good else tried

    def _with_ranks(self, shown: str, num_ranks: int, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        done = run([*command, *RANK], MPIRUN_LIMIT_S, environment)
        return replace(
            self,
            start=shown + shlex.join(command),
            num_ranks=num_ranks,
            sizes=tuple(it["size"] for it in done.answers if "size" in it),
            problem=next(filter(None, (it.get("problem") for it in done.answers)), ""),
            failure="" if len(done.answers) == num_ranks else done.last_words,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """The memory that the processes of this node may use, and what is free of it; None where that is unknown."""

    limit: MemoryLimit | None
    free: MemoryLimit | None

    @classmethod
    def gather(cls) -> Self:
        return cls(limit=limit_of_node(), free=free_on_node())


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """The hard limit on open files; None where there is none."""

    hard: int | None

    @classmethod
    def gather(cls) -> Self:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(hard=None if hard == resource.RLIM_INFINITY else hard)


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """Whether a server can listen, on TCP and on sockets in the file system, and whether its host name leads to it.

    The errors are "" where all is well.
    """

    host: str
    folder: str
    tcp_error: str = ""
    host_error: str = ""
    folder_error: str = ""

    @classmethod
    def gather(cls) -> Self:
        host, folder = socket.gethostname(), private_folder.new_name()
        tcp_error = host_error = folder_error = ""
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as server:
                host_error = _cannot_connect(host, server.getsockname()[1])
        except OSError as error:
            tcp_error = str(error)
        try:
            with _made(folder), socket.socket(socket.AF_UNIX) as server:
                server.bind(str(folder / "d0"))
        except OSError as error:
            folder_error = str(error)
        return cls(
            host=host,
            folder=str(folder.parent),
            tcp_error=tcp_error,
            host_error=host_error,
            folder_error=folder_error,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerFacts:
    """The schedulers whose command for submitting jobs is on the PATH, and the job that this process is in."""

    found: tuple[str, ...]
    job: str = ""

    @classmethod
    def gather(cls) -> Self:
        return cls(
            found=tuple(program for program in SCHEDULERS if shutil.which(program)),
            job=_job(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutput:
    """The output of a program until it ended or was killed."""

    output: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The JSON objects among any other output; an mpirun may put those of two ranks into one line."""
        found, position = [], self.output.find("{")
        while position >= 0:
            try:
                answer, position = _DECODER.raw_decode(self.output, position)
                found.append(answer)
            except ValueError:
                position += 1
            position = self.output.find("{", position)
        return found

    @property
    def last_words(self) -> str:
        """The last line, and the first one, which tells the cause where others follow from it."""
        first = self._lines[0] if self._lines else self.last_line
        return first if first == self.last_line else f"{first} … {self.last_line}"

    @property
    def last_line(self) -> str:
        return self._lines[-1] if self._lines else "it ended without any output"

    @property
    def _lines(self) -> list[str]:
        """The lines that have words."""
        return [line.strip() for line in self.output.splitlines() if any(map(str.isalnum, line))]


def run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> CommandOutput:
    """Run a program, by default without the environment variables of a rank.

    Whatever is left of it after the limit is killed.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                env=scrubbed(os.environ) if environment is None else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return CommandOutput(output=f"{command[0]} cannot be run: {error.strerror}")
        try:
            process.wait(limit_s)
            last = ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            last = f"\nit did not end within {limit_s:.0f} s"
        output.seek(0)
        return CommandOutput(output=output.read().decode(errors="replace") + last)


def _cannot_connect(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return str(error)
    return ""


def _job() -> str:
    return next((os.environ[name] for name in JOBS if name in os.environ), "")


def _starts(config: StudyConfig | None, folder: str) -> Iterator[tuple[str, int, list[str], Mapping[str, str]]]:
    """What starts ranks here: its name, how many ranks, the beginning of its command, and its environment."""
    num_ranks = NUM_RANKS if config is None else ServerSize.of(config).num_ranks
    mpirun = shutil.which("mpirun")
    words = None if config is None else config.server.job.mpirun
    if mpirun is not None:
        yield "", max(NUM_RANKS, num_ranks), [mpirun, "-n", str(max(NUM_RANKS, num_ranks))], os.environ
    # What a job starts is to be tried in one.
    is_here = config is None or config.server.backend == "local" or _job()
    if (mpirun or words) and is_here:
        yield "stream-launcher's ", num_ranks, server_ranks(num_ranks, words), mpirun_environment(config, folder)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    private_folder.make(folder, again=False)
    try:
        yield
    finally:
        private_folder.remove(folder)
