"""The checks of a machine, each of one thing, with its finding and what to do about it; and the table of them.

Why: docs/decisions/0086-doctor-in-processes.md
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
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import stream_server
from stream_server.config import StudyConfig
from stream_server.launcher.backends.allocation import ServerSize
from stream_server.launcher.backends.environment import mpirun_environment, scrubbed
from stream_server.launcher.backends.mpirun import server_ranks
from stream_server.launcher.backends.registry import schedulers
from stream_server.machine import private_folder
from stream_server.machine.cgroups import within_quota
from stream_server.machine.descriptors import BURST, OWN, STRANGERS
from stream_server.machine.interpreter import python_command
from stream_server.machine.screen import size_shown
from stream_server.server.run.plan import free_on_node, limit_of_node
from stream_server.wording import counted

_DECODER = json.JSONDecoder()

COMMAND = "stream-server"
NUM_RANKS = 2
CONNECT_S = 3.0
TORCH_LIMIT_S = 120.0
MPI_LIMIT_S = 60.0
MPIRUN_LIMIT_S = 60.0
RANK = python_command("-m", "stream_server.doctor.rank")
SHARED_MEMORY = "/dev/shm"  # noqa: S108
GPUS = ("/dev/nvidia0", "/dev/kfd")
LITTLE_MEMORY_BYTES = 2 * 2**30
# Four ranks of MPICH 5 die with 4 MiB in all, sometimes with 16, and not with 64.
LITTLE_SHARED_BYTES = 16 * 2**20
# A rank has a connection to each process of each simulation that runs, and one or two of its own.
FEW_CONNECTIONS, TOO_FEW_CONNECTIONS = 256, 16

CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"

# torch may be imported in the training only, and here in no process that goes on.
TORCH = """
import json, torch
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "gpu_build": torch.version.cuda or torch.version.hip, "gpus": names}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutput:
    """The output of a program until it ended or was killed."""

    output: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The JSON objects among any other output; an mpirun may put two ranks' into one line."""
        answers, position = [], self.output.find("{")
        while position >= 0:
            try:
                answer, position = _DECODER.raw_decode(self.output, position)
                answers.append(answer)
            except ValueError:
                position += 1
            position = self.output.find("{", position)
        return answers

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


class Severity(Enum):
    """`NOTE`: it limits some studies. `REPAIR`: no study runs as it should."""

    GOOD = "good"
    NOTE = "note"
    REPAIR = "repair"


GOOD, NOTE, REPAIR = Severity
STYLES = {GOOD: "green", NOTE: "yellow", REPAIR: "bold red"}
MAX_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a subject, its severity, and advice if anything is to be done."""

    subject: str
    fact: str
    severity: Severity = GOOD
    advice: str = ""


def check_python() -> Finding:
    """An environment that is not activated needs repair: mpirun would start another stream-server, or none."""
    package = f"{version(COMMAND)} in {Path(stream_server.__file__).parent}"
    versions = f"{'.'.join(map(str, sys.version_info[:3]))} in {sys.prefix}; stream-server {package}"
    folders = {sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")}
    command = shutil.which(COMMAND)
    if command is None:
        return Finding("Python", versions, REPAIR, "stream-server is not on the PATH: activate this environment")
    if Path(command).resolve() not in {Path(folder, COMMAND).resolve() for folder in folders}:
        advice = f"the stream-server on the PATH is another one, {command}: activate this environment"
        return Finding("Python", versions, REPAIR, advice)
    return Finding("Python", versions)


def check_torch() -> Finding:
    """A GPU that torch does not find is a note, since the training runs on the CPU instead."""
    done = run(python_command("-c", TORCH), TORCH_LIMIT_S)
    if not done.answers:
        advice = f"{CPU_TORCH} (for CPUs), or pip install torch (with CUDA)"
        return Finding("torch", f"cannot be imported: {done.last_line}", REPAIR, advice)
    answer = done.answers[0]
    gpus: list[str] = answer["gpus"]
    if gpus:
        kinds = ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus))
        return Finding("torch", f"{answer['version']} on {kinds}")
    num_cores = within_quota(len(os.sched_getaffinity(0)))
    cpu = f"{answer['version']} on the CPU, {counted(num_cores, 'core')}"
    if not any(Path(device).exists() for device in GPUS):
        return Finding("torch", cpu)
    if answer["gpu_build"] is None:
        advice = "this node has a GPU, but this torch is built for CPUs: pip install --force-reinstall torch"
    else:
        built_for = answer["gpu_build"]
        advice = f"this torch, built for {built_for}, finds no GPU, but this node has one: see what nvidia-smi says"
    return Finding("torch", cpu, NOTE, advice)


def check_mpi(config: StudyConfig | None = None) -> Finding:
    """Start ranks as one types it here and as stream-launcher does, for a study if there is one.

    An mpirun is good if the ranks that it starts find each other in one world. The first that fails is told.

    Raises:
        ConfigError: the ranks of the study have no room in this allocation, or a program is missing.
    """
    alone = run([*RANK, "--name"], MPI_LIMIT_S)
    answer = alone.answers[0] if alone.answers else {"problem": alone.last_line}
    if "mpi" not in answer:
        return Finding("MPI", "none", REPAIR, answer["problem"])
    ranks_here = None
    with private_folder.temporary() as folder:
        for start in _starts(config, str(folder)):
            ranks = _check_ranks(answer["mpi"], *start)
            if ranks.severity is not GOOD:
                return ranks
            ranks_here = ranks_here or ranks
    return ranks_here or _without_mpirun(answer["mpi"])


def _starts(config: StudyConfig | None, folder: str) -> Iterator[tuple[str, int, list[str], Mapping[str, str]]]:
    """Ways to start ranks here: name, number of ranks, beginning of the command, environment."""
    num_ranks = NUM_RANKS if config is None else ServerSize.of(config).num_ranks
    mpirun = shutil.which("mpirun")
    words = None if config is None else config.server.job.mpirun
    if mpirun is not None:
        yield "", max(NUM_RANKS, num_ranks), [mpirun, "-n", str(max(NUM_RANKS, num_ranks))], os.environ
    # What a job starts must be tried in one.
    is_here = config is None or config.server.backend == "local" or _job()
    if (mpirun or words) and is_here:
        yield "stream-launcher's ", num_ranks, server_ranks(num_ranks, words), mpirun_environment(config, folder)


def _check_ranks(
    mpi: str, shown: str, num_ranks: int, command: Sequence[str], environment: Mapping[str, str]
) -> Finding:
    done = run([*command, *RANK], MPIRUN_LIMIT_S, environment)
    launch = f"{mpi}, {shown}{shlex.join(command)}"
    sizes = [answer["size"] for answer in done.answers if "size" in answer]
    if problems := [answer["problem"] for answer in done.answers if answer.get("problem")]:
        return Finding("MPI", launch, REPAIR, problems[0])
    if sizes == [num_ranks] * num_ranks:
        return Finding("MPI", f"{launch}: {num_ranks} ranks found each other")
    if sizes == [1] * num_ranks:
        return Finding("MPI", launch, REPAIR, f"its ranks do not find each other: use the mpirun of {mpi}")
    advice = f"it failed: {done.last_words}"
    slurm_job = os.environ.get("SLURM_JOB_ID")
    if slurm_job or "srun:" in advice:
        job = f"SLURM_JOB_ID is {slurm_job}" if slurm_job else "a variable names Slurm as the launcher"
        advice += (
            f". {job}, so that mpirun has Slurm start the ranks. If this shell is in no job, unset the variables "
            "that begin with SLURM_. On one node these do without Slurm: HYDRA_LAUNCHER=fork under MPICH, "
            "PRTE_MCA_ras=^slurm with PRTE_MCA_plm=^slurm under Open MPI"
        )
    needed = LITTLE_SHARED_BYTES * num_ranks
    if os.path.isdir(SHARED_MEMORY) and (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
        advice += (
            f". {SHARED_MEMORY} has {size_shown(free)} free, and the memory that ranks share is there: "
            f"give it {size_shown(needed)} (--shm-size of a container)"
        )
    return Finding("MPI", launch, REPAIR, advice)


def _without_mpirun(mpi: str) -> Finding:
    if starter := shutil.which("srun") or shutil.which("flux"):
        advice = f"start the ranks with {starter}; stream-launcher and simulation.ranks need mpirun"
        return Finding("MPI", f"{mpi}, no mpirun", NOTE, advice)
    advice = f"put the mpirun of {mpi} on the PATH: activate the environment, or load the MPI module"
    return Finding("MPI", f"{mpi}, no mpirun", REPAIR, advice)


def check_memory() -> Finding:
    """Little free memory is a note: other programs may release theirs."""
    limit, available = limit_of_node(), free_on_node()
    if limit is None or available is None:
        return Finding("memory", "not known")
    # What is free on the machine may be more than the cgroups of this process allow.
    free = min(available.num_bytes, limit.num_bytes)
    space = f"{size_shown(limit.num_bytes)} ({limit.source}), {size_shown(free)} free"
    if free >= LITTLE_MEMORY_BYTES:
        return Finding("memory", space)
    advice = "a rank with torch takes about 0.5 GiB, its buffer comes on top: stream-server --check says how much"
    return Finding("memory", space, NOTE, advice)


def check_open_files() -> Finding:
    """The hard limit counts, since a server raises the soft one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", "unlimited")
    connections = max(0, hard - OWN - STRANGERS)
    limit = f"{hard:,} (ulimit -Hn): {connections:,} connections of a rank"
    if connections >= FEW_CONNECTIONS + BURST:
        return Finding("open files", limit)
    if connections >= FEW_CONNECTIONS:
        advice = (
            f"with {BURST:,} more than a study needs (stream-server --check), a flood of connections is harmless even "
            "while user code holds the interpreter: have the limit raised if strangers reach this node"
        )
        return Finding("open files", limit, NOTE, advice)
    advice = "each process of a simulation that runs is one connection: have the limit raised, or run fewer at once"
    return Finding("open files", limit, NOTE if connections >= TOO_FEW_CONNECTIONS else REPAIR, advice)


def check_ports() -> Finding:
    """Try to listen on TCP and on a socket in the file system, and to get here by the host name.

    A host name that does not lead here is a note: studies on one node do not need it.
    """
    host, folder, host_error = socket.gethostname(), private_folder.place(), ""
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as server:
            try:
                socket.create_connection((host, server.getsockname()[1]), timeout=CONNECT_S).close()
            except OSError as error:
                host_error = str(error)
    except OSError as error:
        return Finding(
            "ports", f"no port: {error}", REPAIR, "a server listens on TCP ports: allow that to this process"
        )
    try:
        with private_folder.temporary() as private, socket.socket(socket.AF_UNIX) as server:
            server.bind(str(private / "d0"))
    except OSError as error:
        advice = "set TMPDIR to a folder of this node that can be written"
        return Finding("ports", f"no socket in {folder}: {error}", REPAIR, advice)
    if host_error:
        sockets = f"TCP, and sockets in {folder}; but {host} does not lead here: {host_error}"
        advice = "ranks and simulations on other nodes need that; see network.interface in docs/reference/study.md"
        return Finding("ports", sockets, NOTE, advice)
    return Finding("ports", f"TCP at {host}, and sockets in {folder}")


def check_scheduler() -> Finding:
    """A scheduler outside of a job is a note: this may be a login node, and compute nodes may differ."""
    there = (it for it in schedulers() if shutil.which(it.commands[0]))
    names = ", ".join(f"{it.whose_commands or it.title} ({it.commands[0]})" for it in there)
    if not names:
        return Finding("scheduler", "none: simulations run on this machine")
    if job := _job():
        return Finding("scheduler", f"{names}, in job {job}")
    return Finding("scheduler", names, NOTE, "compute nodes may differ from this one: run the doctor in a job, too")


def _job() -> str:
    names = (name for it in schedulers() for name in it.job_variables)
    return next((os.environ[name] for name in names if name in os.environ), "")


def examine(config: StudyConfig | None = None) -> Iterator[Finding]:
    """Look at one thing after the other, for a study if there is one.

    torch and MPI take some seconds; nothing is left behind.

    Raises:
        ConfigError: the server of the study cannot be started here at all.
    """
    yield check_python()
    yield check_torch()
    yield check_mpi(config)
    yield check_memory()
    yield check_open_files()
    yield check_ports()
    yield check_scheduler()


def report(config: StudyConfig | None = None) -> int:
    """Examine this machine and print the findings; returns 1 if something must be repaired, otherwise 0.

    Raises:
        ConfigError: see `examine`.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        # A path in a file or a pipe must be copied, and may be long.
        console.width = MAX_WIDTH
    with console.status("Looking at Python, torch and MPI"):
        findings = list(examine(config))
    console.print(as_table(findings), Text(conclusion(findings)))
    return int(any(finding.severity is Severity.REPAIR for finding in findings))


def as_table(findings: Sequence[Finding]) -> Table:
    """The findings, one in a row, each with its advice below."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.severity.value, STYLES[finding.severity]), finding.subject, Text(finding.fact))
        if finding.advice:
            table.add_row("", "", Text(finding.advice, STYLES[finding.severity]))
    return table


def conclusion(findings: Sequence[Finding]) -> str:
    """The last line."""
    subjects = [finding.subject for finding in findings if finding.severity is Severity.REPAIR]
    if subjects:
        return f"to repair: {', '.join(subjects)}"
    return "ready: stream-study new heat my-study"
