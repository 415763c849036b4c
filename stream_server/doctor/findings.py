"""Findings from the facts about a machine: whether a study can run on it, and what to do. Pure."""

from dataclasses import dataclass
from enum import Enum

from stream_server.doctor import facts
from stream_server.machine.descriptors import BURST, OWN, STRANGERS
from stream_server.machine.screen import size_shown
from stream_server.wording import counted

OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY_BYTES = 2 * 2**30
# Four ranks of MPICH 5 die with 4 MiB in all, sometimes with 16, and not with 64.
LITTLE_SHARED_BYTES = 16 * 2**20
# A rank has a connection to each process of each simulation that runs, and one or two of its own.
FEW_CONNECTIONS, TOO_FEW_CONNECTIONS = 256, 16

CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


class Severity(Enum):
    """`NOTE`: it limits some studies. `REPAIR`: no study runs as it should."""

    GOOD = "good"
    NOTE = "note"
    REPAIR = "repair"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A fact about a subject, its severity, and advice if anything is to be done."""

    subject: str
    found: str
    severity: Severity = Severity.GOOD
    advice: str = ""


def of_python(told: facts.PythonFacts) -> Finding:
    """An environment that is not activated needs repair: mpirun would start another stream-server, or none."""
    found = f"{'.'.join(map(str, told.version))} in {told.prefix}; stream-server {told.package}"
    if told.version < OLDEST_PYTHON:
        severity, advice = Severity.REPAIR, "install into an environment of Python 3.11 or newer"
    elif told.command is None:
        severity, advice = Severity.REPAIR, "stream-server is not on the PATH: activate this environment"
    elif not told.is_own_command:
        severity = Severity.REPAIR
        advice = f"the stream-server on the PATH is another one, {told.command}: activate this environment"
    else:
        severity, advice = Severity.GOOD, ""
    return Finding(subject="Python", found=found, severity=severity, advice=advice)


def of_torch(told: facts.TorchFacts) -> Finding:
    """A GPU that torch does not find is a note, since the training runs on the CPU instead."""
    subject = "torch"
    if told.error:
        return Finding(
            subject=subject,
            found=f"cannot be imported: {told.error}",
            severity=Severity.REPAIR,
            advice=f"{CPU_TORCH} (for CPUs), or pip install torch (with CUDA)",
        )
    if told.gpus:
        kinds = ", ".join(f"{told.gpus.count(name)} × {name}" for name in dict.fromkeys(told.gpus))
        return Finding(subject=subject, found=f"{told.version} on {kinds}")
    cpu = f"{told.version} on the CPU, {counted(told.num_cores, 'core')}"
    if told.node_has_gpu and told.gpu_build is None:
        advice = "this node has a GPU, but this torch is built for CPUs: pip install --force-reinstall torch"
        return Finding(subject=subject, found=cpu, severity=Severity.NOTE, advice=advice)
    if told.node_has_gpu:
        advice = (
            f"this torch, built for {told.gpu_build}, finds no GPU, but this node has one: see what nvidia-smi says"
        )
        return Finding(subject=subject, found=cpu, severity=Severity.NOTE, advice=advice)
    return Finding(subject=subject, found=cpu)


def of_mpi(told: facts.MpiFacts) -> Finding:
    """An mpirun is good if the ranks that it starts find each other in one world."""
    subject = "MPI"
    if not told.mpi:
        return Finding(subject=subject, found="none", severity=Severity.REPAIR, advice=told.problem)
    if told.start is None and told.other_starter is not None:
        advice = f"start the ranks with {told.other_starter}; stream-launcher and simulation.ranks need mpirun"
        return Finding(subject=subject, found=f"{told.mpi}, no mpirun", severity=Severity.NOTE, advice=advice)
    if told.start is None:
        advice = f"put the mpirun of {told.mpi} on the PATH: activate the environment, or load the MPI module"
        return Finding(subject=subject, found=f"{told.mpi}, no mpirun", severity=Severity.REPAIR, advice=advice)
    found = f"{told.mpi}, {told.start}"
    if told.problem:
        return Finding(subject=subject, found=found, severity=Severity.REPAIR, advice=told.problem)
    if told.is_one_world:
        return Finding(subject=subject, found=f"{found}: {told.num_ranks} ranks found each other")
    if told.sizes == (1,) * told.num_ranks:
        advice = f"its ranks do not find each other: use the mpirun of {told.mpi}"
    else:
        advice = f"it failed: {told.failure}"
        if told.slurm_job or "srun:" in told.failure:
            job = f"SLURM_JOB_ID is {told.slurm_job}" if told.slurm_job else "a variable names Slurm as the launcher"
            advice += (
                f". {job}, so that mpirun has Slurm start the ranks. If this shell is in no job, unset the variables "
                "that begin with SLURM_. On one node these do without Slurm: HYDRA_LAUNCHER=fork under MPICH, "
                "PRTE_MCA_ras=^slurm with PRTE_MCA_plm=^slurm under Open MPI"
            )
        if told.shared_bytes is not None and told.shared_bytes < LITTLE_SHARED_BYTES * told.num_ranks:
            advice += (
                f". {facts.SHARED_MEMORY} has {size_shown(told.shared_bytes)} free, and the memory that ranks share is "
                f"there: give it {size_shown(LITTLE_SHARED_BYTES * told.num_ranks)} (--shm-size of a container)"
            )
    return Finding(subject=subject, found=found, severity=Severity.REPAIR, advice=advice)


def of_memory(told: facts.MemoryFacts) -> Finding:
    """Little free memory is a note: other programs may release theirs."""
    subject = "memory"
    if told.limit is None or told.free is None:
        return Finding(subject=subject, found="not known")
    # What is free on the machine may be more than the cgroups of this process allow.
    free = min(told.free.num_bytes, told.limit.num_bytes)
    found = f"{size_shown(told.limit.num_bytes)} ({told.limit.source}), {size_shown(free)} free"
    if free >= LITTLE_MEMORY_BYTES:
        return Finding(subject=subject, found=found)
    advice = "a rank with torch takes about 0.5 GiB, its buffer comes on top: stream-server --check says how much"
    return Finding(subject=subject, found=found, severity=Severity.NOTE, advice=advice)


def of_files(told: facts.FileFacts) -> Finding:
    """The hard limit counts, since a server raises the soft one."""
    subject = "open files"
    if told.hard is None:
        return Finding(subject=subject, found="unlimited")
    connections = max(0, told.hard - OWN - STRANGERS)
    found = f"{told.hard:,} (ulimit -Hn): {connections:,} connections of a rank"
    if connections >= FEW_CONNECTIONS + BURST:
        return Finding(subject=subject, found=found)
    if connections >= FEW_CONNECTIONS:
        advice = (
            f"with {BURST:,} more than a study needs (stream-server --check), a flood of connections is harmless even "
            "while user code holds the interpreter: have the limit raised if strangers reach this node"
        )
        return Finding(subject=subject, found=found, severity=Severity.NOTE, advice=advice)
    severity = Severity.NOTE if connections >= TOO_FEW_CONNECTIONS else Severity.REPAIR
    advice = "each process of a simulation that runs is one connection: have the limit raised, or run fewer at once"
    return Finding(subject=subject, found=found, severity=severity, advice=advice)


def of_ports(told: facts.PortFacts) -> Finding:
    """A host name that does not lead here is a note: studies on one node do not need it."""
    subject = "ports"
    if told.tcp_error:
        advice = "a server listens on TCP ports: allow that to this process"
        return Finding(subject=subject, found=f"no port: {told.tcp_error}", severity=Severity.REPAIR, advice=advice)
    if told.folder_error:
        return Finding(
            subject=subject,
            found=f"no socket in {told.folder}: {told.folder_error}",
            severity=Severity.REPAIR,
            advice="set TMPDIR to a folder of this node that can be written",
        )
    if told.host_error:
        return Finding(
            subject=subject,
            found=f"TCP, and sockets in {told.folder}; but {told.host} does not lead here: {told.host_error}",
            severity=Severity.NOTE,
            advice="ranks and simulations on other nodes need that; see network.interface in docs/reference/study.md",
        )
    return Finding(subject=subject, found=f"TCP at {told.host}, and sockets in {told.folder}")


def of_scheduler(told: facts.SchedulerFacts) -> Finding:
    """A scheduler outside of a job is a note: this may be a login node, and compute nodes may differ."""
    subject = "scheduler"
    if not told.found:
        return Finding(subject=subject, found="none: simulations run on this machine")
    names = ", ".join(f"{facts.SCHEDULERS[program]} ({program})" for program in told.found)
    if told.job:
        return Finding(subject=subject, found=f"{names}, in job {told.job}")
    advice = "compute nodes may differ from this one: run the doctor in a job, too"
    return Finding(subject=subject, found=names, severity=Severity.NOTE, advice=advice)
