"""The allocation of Slurm in which this process is, what fits into it, and how many ranks of the server do."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from stream_server.config import StudyConfig
from stream_server.config.job_sections import JobSettings
from stream_server.errors import ConfigError
from stream_server.launcher.backends import slurm
from stream_server.launcher.backends.scheduler import MIB
from stream_server.machine.cgroups import within_quota
from stream_server.wording import counted

# Such as 3(x2),1: a number for each node.
PER_NODE = re.compile(r"(\d+)(?:\(x(\d+)\))?")
SHARE_WITH_STEPS = ("local", "slurm-steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The nodes and tasks of a job of Slurm; `cores_per_task` is what the job asked for.

    `cores` of each node are there if they are known, and `bytes_per_core` if Slurm gives out memory.
    """

    num_nodes: int
    num_tasks: int
    cores_per_task: int = 1
    cores: tuple[int, ...] = ()
    bytes_per_core: float | None = None

    @classmethod
    def found(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """The allocation of the job whose environment this is, None outside of any."""
        of_job = os.environ if environment is None else environment
        nodes, tasks = of_job.get("SLURM_JOB_NUM_NODES", ""), of_job.get("SLURM_TASKS_PER_NODE", "")
        if "SLURM_JOB_ID" not in of_job or not nodes.isdigit():
            return None
        cores = _on_each_node(of_job.get("SLURM_JOB_CPUS_PER_NODE", ""))
        of_core, of_node = (_number(of_job.get(f"SLURM_MEM_PER_{each}", "")) for each in ("CPU", "NODE"))
        mib_per_core = of_core or (of_node / max(cores) if cores else 0)
        return cls(
            num_nodes=int(nodes),
            num_tasks=sum(_on_each_node(tasks)) or int(nodes),
            cores_per_task=max(1, int(of_job.get("SLURM_CPUS_PER_TASK", "1"))),
            cores=cores,
            bytes_per_core=mib_per_core * MIB or None,
        )

    def problem(self, job: JobSettings, ranks: int) -> str:
        """Why steps of so many ranks can never run here, "" if they can, or that is not known."""
        if not self.cores:
            return ""
        there = f"the allocation has {sum(self.cores)} on {counted(len(self.cores), 'node')}"
        if job.cores_per_rank > max(self.cores):
            return f"simulation.job.cores_per_rank: {job.cores_per_rank} cores are on no node: {there}"
        if ranks * job.cores_per_rank > sum(self.cores):
            return (
                f"simulation.ranks: {ranks} ranks of {job.cores_per_rank} cores (simulation.job.cores_per_rank) need "
                f"{ranks * job.cores_per_rank} cores, and {there}"
            )
        of_node = (self.bytes_per_core or math.inf) * max(self.cores)
        if job.memory is not None and job.memory > of_node:
            return (
                f"simulation.job.memory: {job.memory / MIB:,.0f} MiB are more than the {of_node / MIB:,.0f} MiB that "
                "the allocation has on a node (`#SBATCH --mem` of the batch script)"
            )
        return ""


def _on_each_node(told: str) -> tuple[int, ...]:
    return tuple(int(num) for num, times in PER_NODE.findall(told) for _ in range(int(times or 1)))


def _number(word: str) -> int:
    return int(word) if word.isdecimal() else 0


def time_left_s() -> float:
    """The time that is left to the job of Slurm in which this process is; infinity if there is none, or no end."""
    job = os.environ.get("SLURM_JOB_ID")
    left_s = slurm.time_left_s(job) if job else None
    return math.inf if left_s is None else left_s


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSize:
    """Number of ranks of the server, at most `num_on_node` of them on one node; `why` says where it was chosen."""

    num_ranks: int
    num_on_node: int
    why: str = ""

    @classmethod
    def of(cls, config: StudyConfig, environment: Mapping[str, str] | None = None) -> Self:
        """The number of ranks with which stream-launcher starts the server, here and now.

        A server in a job of its own has `server.ranks`. Beside the launcher it has what the simulations leave of the
        allocation, or, outside of one, of the cores of this node; where they leave less than `server.ranks.min`, they
        wait for each other instead.

        Raises:
            ConfigError: the allocation, or the node, has less than `server.ranks.min` altogether.
        """
        wanted, allocation = config.server.ranks, Allocation.found(environment)
        if config.server.backend != "local":
            return cls(num_ranks=wanted.max, num_on_node=math.ceil(wanted.max / (config.server.job.nodes or 1)))
        if wanted.min == wanted.max:
            return cls(num_ranks=wanted.max, num_on_node=_bounded(wanted.max, allocation))
        if allocation is None:
            room, cores_each = within_quota(len(os.sched_getaffinity(0))), 1
            there, more = f"this node has {room} cores", "Run it where there are more"
        else:
            room, cores_each = allocation.num_tasks, allocation.cores_per_task
            there, more = f"the allocation has {room} tasks", "Ask for more (`sbatch --ntasks`)"
        if room < wanted.min:
            raise ConfigError(f"server.ranks: {there}, but min is {wanted.min}. {more}, or make min smaller")
        taken = _taken_by_simulations(config, cores_each)
        num_ranks = min(max(room - taken, wanted.min), wanted.max)
        share = f", of which simulations take {taken}" if taken else ""
        why = f"{there}{share}; server.ranks is {wanted}"
        return cls(num_ranks=num_ranks, num_on_node=_bounded(num_ranks, allocation), why=why)


def _bounded(num_ranks: int, allocation: Allocation | None) -> int:
    """Number of these ranks that mpirun puts on one node: as many as that has tasks, unless there are more in all."""
    if allocation is None or num_ranks > allocation.num_tasks:
        return num_ranks
    return min(num_ranks, math.ceil(allocation.num_tasks / allocation.num_nodes))


def _taken_by_simulations(config: StudyConfig, cores_each: int) -> int:
    """The tasks, of `cores_each` cores, that simulations take where the server is; others have jobs of their own."""
    simulation = config.simulation
    if simulation.command is None or config.launcher.backend not in SHARE_WITH_STEPS:
        return 0
    num = min(config.launcher.max_running, config.study.simulations + config.validation.simulations)
    cores = num * simulation.ranks * simulation.job.cores_per_rank
    return math.ceil(cores / cores_each)
