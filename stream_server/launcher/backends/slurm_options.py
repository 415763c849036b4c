"""The options of Slurm for jobs and steps, and what fits into an allocation. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import LOG_FILE
from stream_server.launcher.backends.scheduler import MIB, option_words
from stream_server.wording import counted

PER_NODE = re.compile(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*")
EACH_NODE = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationSize:
    """The resources of an allocation: the cores of each node, and the memory of each, if Slurm gives out memory."""

    cores: tuple[int, ...]
    bytes_per_core: float | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The allocation that a batch script sees; None if its variables do not tell."""
        told = environment.get("SLURM_JOB_CPUS_PER_NODE", "")
        if not PER_NODE.fullmatch(told):
            return None
        cores = [int(num) for num, times in EACH_NODE.findall(told) for _ in range(int(times or 1))]
        of_core, of_node = environment.get("SLURM_MEM_PER_CPU", ""), environment.get("SLURM_MEM_PER_NODE", "")
        bytes_per_core = None
        if of_core.isdecimal() and int(of_core):
            bytes_per_core = float(of_core) * MIB
        elif of_node.isdecimal() and int(of_node):
            bytes_per_core = float(of_node) * MIB / max(cores)
        return cls(cores=tuple(cores), bytes_per_core=bytes_per_core)

    def problem(self, job: JobSettings, ranks: int) -> str:
        """Why steps of so many ranks can never run here, "" if they can."""
        there = f"the allocation has {sum(self.cores)} on {counted(len(self.cores), 'node')}"
        if job.cores_per_rank > max(self.cores):
            return f"simulation.job.cores_per_rank: {job.cores_per_rank} cores are on no node: {there}"
        if ranks * job.cores_per_rank > sum(self.cores):
            return (
                f"simulation.ranks: {ranks} ranks of {job.cores_per_rank} cores (simulation.job.cores_per_rank) need "
                f"{ranks * job.cores_per_rank} cores, and {there}"
            )
        if job.memory is None or self.bytes_per_core is None:
            return ""
        of_node = self.bytes_per_core * max(self.cores)
        if job.memory > of_node:
            return (
                f"simulation.job.memory: {job.memory / MIB:,.0f} MiB are more than the {of_node / MIB:,.0f} MiB that "
                "the allocation has on a node (`#SBATCH --mem` of the batch script)"
            )
        return ""


def resource_options(job: JobSettings, ranks: int) -> list[str]:
    """The options of sbatch and srun for what `ranks` ranks take."""
    options = [f"--ntasks={ranks}", f"--cpus-per-task={job.cores_per_rank}"]
    if job.gpus_per_rank:
        options.append(f"--gpus-per-task={job.gpus_per_rank}")
    if job.memory is not None:
        options.append(f"--mem-per-cpu={math.ceil(job.memory / job.cores_per_rank / MIB)}M")
    return [*options, *option_words(job, "--")]


def job_options(job: JobSettings, ranks: int) -> list[str]:
    """The options of sbatch for a job of `ranks` ranks, without name and place."""
    asked = {"nodes": job.nodes, "time": job.walltime, "partition": job.partition, "account": job.account}
    wanted = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    # A job that Slurm starts again by itself would meet its own traces in the folder.
    return [*resource_options(job, ranks), *wanted, "--no-requeue", "--export=NIL"]


def placing_options(name: str, folder: Path) -> list[str]:
    """The options of sbatch for the name and the folder of a job."""
    return [f"--job-name={name}", f"--chdir={folder}", f"--output={LOG_FILE}", "--open-mode=append"]
