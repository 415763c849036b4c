"""The processes of a running study: who they are."""

import contextlib
from pathlib import Path

import psutil

from tests.support.runs import marked_processes

KINDS = ("launcher", "mpirun", "rank", "client", "shell", "sampler")
MPIRUN = ("mpirun", "mpiexec.hydra", "hydra_pmi_proxy", "prterun", "prted")

RANK = {"stream-server", "stream_server.server.commands.cli"}
STARTER = "stream_server.launcher.backends.ranks_here"
SAMPLER = "stream_server.server.steering.generator_worker"
LAUNCHER = {"stream-launcher", "stream_server.launcher.supervision.cli"}


def processes_by_kind(mark: str) -> dict[str, list[psutil.Process]]:
    """All processes of a run; a shell is what leads the session of a job, and tells how it ended."""
    found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
    for process in marked_processes(mark):
        with contextlib.suppress(psutil.Error):
            kind = kind_of(process.name(), process.cmdline())
            if kind is not None:
                found[kind].append(process)
    return found


def kind_of(name: str, command: list[str]) -> str | None:
    """The kind of a process, by its name and command line; None for a short-lived one."""
    programs = {Path(word).name for word in command}
    if name in MPIRUN:
        return "mpirun"
    if name in ("sh", "dash", "bash"):
        return "shell"
    if not name.startswith(("python", "stream-")):
        return None
    if "wave.py" in programs:
        return "client"
    if STARTER in programs:
        return "mpirun"
    if SAMPLER in programs:
        return "sampler"
    if programs & RANK:
        return "rank"
    return "launcher" if programs & LAUNCHER else None


def name_of(process: psutil.Process) -> str:
    """The process in words."""
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)
