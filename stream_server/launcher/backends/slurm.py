"""The backend `slurm`: each job is a job of Slurm."""

from collections.abc import Collection

from stream_server.config import StudyConfig, walltime_s
from stream_server.errors import ConfigError
from stream_server.launcher.backends import slurm_commands, slurm_options
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    JobKind,
    NotSubmitted,
    QueueEntry,
    in_words,
)


class Slurm(CommandScheduler):
    """Slurm, for the jobs of a study; see `Scheduler`."""

    title = "Slurm"
    variables: tuple[str, ...] = ("SLURM_",)
    commands = ("sbatch", "scancel", "squeue")
    hints = slurm_commands.HINTS

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
            slurm_commands.check(slurm_options.job_options(resources, ranks), "#!/bin/sh\n")
        except NotSubmitted as error:
            if slurm_commands.NO_CLUSTER in str(error):
                raise ConfigError(
                    f'{self.kind.key}: "slurm", but this machine belongs to no cluster: {error}. Start the study on a '
                    "login node, or let SLURM_CONF name the configuration of the cluster"
                ) from error
            raise

    def submit(self, job: BatchJob) -> str:
        """Call sbatch."""
        options = slurm_options.job_options(self.resources, job.ranks) + slurm_options.placing_options(
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


class SlurmBackend(BatchBackend):
    """Jobs of Slurm, of the simulations unless it says which `kind`. The `times` are those of `BatchBackend`."""

    def __init__(self, config: StudyConfig, kind: JobKind | None = None, **times: float) -> None:
        kind = kind or JobKind.of_simulations(config)
        super().__init__(kind, Slurm(kind), **times)
