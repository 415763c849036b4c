"""The facts about a machine that the doctor gathers. Only `gather` of each class touches the machine.

torch and MPI are tried in processes of their own: whatever they do there, hang or crash, becomes a fact.
"""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import stream_server
from stream_server.launcher.backends.environment import mpirun_environment, scrubbed
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
SCHEDULERS = {"sbatch": "Slurm", "qsub": "PBS or Grid Engine", "bsub": "LSF", "flux": "Flux"}
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "JOB_ID", "LSB_JOBID", "FLUX_JOB_ID")
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
    """The MPI that mpi4py loads, the mpirun on the PATH, and what the ranks said that it started.

    `sizes` are those of the worlds in which the ranks found themselves, `problem` is what the server would say here,
    and `failure` the last output of a job that failed. `other_starter` is another program that starts ranks.
    """

    mpi: str = ""
    mpirun: str | None = None
    sizes: tuple[int, ...] = ()
    problem: str = ""
    failure: str = ""
    other_starter: str | None = None
    slurm_job: str = ""

    @classmethod
    def gather(cls) -> Self:
        program = python_command("-m", "stream_server.doctor.rank")
        alone = run([*program, "--name"], MPI_LIMIT_S)
        told = alone.answers[0] if alone.answers else {"problem": alone.last_line}
        mpirun, mpi = shutil.which("mpirun"), told.get("mpi", "")
        other = shutil.which("srun") or shutil.which("flux")
        if not mpi or mpirun is None:
            return cls(mpi=mpi, problem=told.get("problem", ""), mpirun=mpirun, other_starter=other)
        done = run([mpirun, "-n", str(NUM_RANKS), *program], MPIRUN_LIMIT_S, mpirun_environment())
        problems = (it.get("problem") for it in done.answers)
        return cls(
            mpi=mpi,
            mpirun=mpirun,
            sizes=tuple(it["size"] for it in done.answers if "size" in it),
            problem=next(filter(None, problems), ""),
            failure="" if len(done.answers) == NUM_RANKS else done.last_words,
            slurm_job=os.environ.get("SLURM_JOB_ID", ""),
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
            with socket.create_server(("", 0)) as server:
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
            job=next((os.environ[name] for name in JOBS if name in os.environ), ""),
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


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    private_folder.make(folder, again=False)
    try:
        yield
    finally:
        private_folder.remove(folder)
