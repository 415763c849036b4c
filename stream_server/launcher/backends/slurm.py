"""The scheduler `slurm`: each job is a job of Slurm."""

import re
from collections.abc import Collection, Mapping

from stream_server.config import walltime_s
from stream_server.errors import ConfigError
from stream_server.launcher.backends import slurm_commands
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    NotSubmitted,
    QueueEntry,
    in_words,
)


class Slurm(CommandScheduler):
    """Slurm, for the jobs of a study; see `CommandScheduler`."""

    title = "Slurm"
    variables: tuple[str, ...] = ("SLURM_",)
    commands = ("sbatch", "scancel", "squeue")
    rank_variables: tuple[str, ...] = (
        *("SLURM_STEP", "SLURM_TASK", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
        *("SLURM_GTIDS", "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_DISTRIBUTION", "SLURM_PMI", "SLURM_MPI_TYPE"),
        *("SLURM_SRUN_", "SLURM_LAUNCH_NODE_IPADDR"),
    )
    job_variables = ("SLURM_JOB_ID",)
    hints = slurm_commands.HINTS
    option = re.compile(r"[a-z][a-z0-9-]+")
    no_option = ("this is no long option of Slurm", 'Write its name without dashes, such as "qos"')
    own_options = frozenset(
        (
            *("array", "chdir", "clusters", "error", "export", "export-file", "get-user-env", "input", "job-name"),
            *("no-requeue", "open-mode", "output", "overlap", "parsable", "quiet", "requeue", "test-only", "wait"),
            "wrap",
        )
    )
    keys: Mapping[str, str] = {
        "account": "simulation.job.account",
        "cpus-per-task": "simulation.job.cores_per_rank",
        "gpus-per-task": "simulation.job.gpus_per_rank",
        "mem-per-cpu": "simulation.job.memory",
        "nodes": "simulation.job.nodes",
        "ntasks": "simulation.ranks",
        "partition": "simulation.job.partition",
        "time": "simulation.job.walltime",
    }

    def check(self, ranks: int) -> None:
        """Ask sbatch, which says nothing of a walltime above the limit of the partition."""
        resources = self.resources
        limit = slurm_commands.time_limit_s(resources.partition)
        if resources.walltime is not None and limit is not None and walltime_s(resources.walltime) > limit:
            raise ConfigError(
                f"{self.kind.section}.walltime: {resources.walltime} is longer than the time limit of the partition, "
                f"{in_words(limit)}: such a job would wait for ever"
            )
        try:
            slurm_commands.check(slurm_commands.job_options(resources, ranks), "#!/bin/sh\n")
        except NotSubmitted as error:
            if slurm_commands.NO_CLUSTER in str(error):
                raise ConfigError(
                    f'{self.kind.key}: "slurm", but this machine belongs to no cluster: {error}. Start the study on a '
                    "login node, or let SLURM_CONF name the configuration of the cluster"
                ) from error
            raise

    def submit(self, job: BatchJob) -> str:
        """Call sbatch."""
        options = slurm_commands.job_options(self.resources, job.ranks) + slurm_commands.placing_options(
            job.name, job.folder
        )
        return slurm_commands.submit(options, job.script)

    def queue(self) -> list[QueueEntry]:
        """Call squeue."""
        return slurm_commands.queue()

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """Call scancel."""
        if at_once:
            slurm_commands.cancel(ids, "--full", "--signal=KILL")
        slurm_commands.cancel(ids)
