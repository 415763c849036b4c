"""The backend `slurm-steps`: each job is a step of the allocation of Slurm in which the launcher runs.

A step is started by `srun`, a process of this node: a local job, as far as it can be seen from here. What it started on
other nodes is asked of Slurm.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends import slurm_commands, slurm_job
from stream_server.launcher.backends.backend import JobSpec, JobState, JobStatus, SavedJob
from stream_server.launcher.backends.local import GRACE_S, LocalBackend

COMMANDS = ("srun", "scancel", "squeue")
ALLOCATION = "SLURM_JOB_ID"
# What srun would take for its own options: they are those of the batch script.
OF_THE_SCRIPT = ("SLURM_CPUS_PER", "SLURM_GPUS", "SLURM_JOB_NUM_NODES", "SLURM_MEM_PER", "SLURM_NNODES")
STEP_FILE = "job.name"


class SlurmSteps(LocalBackend):
    """Steps of the allocation; see `Backend`.

    Raises:
        ConfigError: there is no allocation, or the commands of Slurm are not here.
    """

    query_interval_s = 0.2

    def __init__(self, config: StudyConfig, *, grace_s: float = GRACE_S) -> None:
        super().__init__(config, grace_s=grace_s)
        slurm_commands.require(*COMMANDS)
        if ALLOCATION not in os.environ:
            raise ConfigError(
                'launcher.backend: "slurm-steps" runs the simulations within an allocation of Slurm, and there is none '
                'here. Start the study from a batch script or under `salloc`, or write "slurm"'
            )
        self.allocation = os.environ[ALLOCATION]
        self.study = config.study.name
        self.ranks = config.simulation.ranks
        self.resources = config.simulation.job
        self._names: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._outlived: dict[str, JobStatus] = {}

    def submit(self, spec: JobSpec) -> str:
        """Start a step, which waits for cores of the allocation that no other step has.

        Raises:
            SubmitError: the system refuses another process.
        """
        name = slurm_job.job_name(self.study, spec.folder, secrets.token_hex(6))
        options = [*slurm_job.resource_options(self.resources, self.ranks), "--exact", f"--job-name={name}"]
        if self.ranks == 1:
            options.append("--nodes=1")
        environment = {key: value for key, value in spec.environment.items() if not key.startswith(OF_THE_SCRIPT)}
        (spec.folder / STEP_FILE).write_text(name)
        step = replace(spec, command=("srun", *options, *spec.command), environment=environment)
        handle = super().submit(step)
        self._names[handle] = name
        return handle

    def reattach(self, job: SavedJob) -> str:
        """Watch a step of another launcher."""
        handle = super().reattach(job)
        file = job.folder / STEP_FILE
        self._names[handle] = file.read_text() if file.exists() else ""
        return handle

    def cancel(self, handles: Collection[str]) -> None:
        """TERM to all processes of these steps; srun passes it on, and Slurm kills what is left."""
        self._cancelled |= set(handles)
        super().cancel(handles)

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Look at these steps; one whose srun was killed has ended once Slurm knows no such step any more."""
        statuses = dict(super().query([handle for handle in handles if handle not in self._outlived]))
        for handle, status in statuses.items():
            if status.state is JobState.ENDED and (status.exit_code is None or handle in self._cancelled):
                self._outlived[handle] = status
        asked = {handle: self._outlived[handle] for handle in handles if handle in self._outlived}
        left = self._end_steps(asked)
        for handle, status in asked.items():
            statuses[handle] = JobStatus(state=JobState.ENDING) if handle in left else status
        for handle, status in statuses.items():
            if status.state is JobState.ENDED:
                self._outlived.pop(handle, None)
                self._cancelled.discard(handle)
                self._names.pop(handle, None)
        return statuses

    def close(self) -> None:
        """Kill what still runs."""
        super().close()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._end_steps(self._names)

    def _end_steps(self, handles: Collection[str]) -> set[str]:
        """Kill what Slurm knows of these steps; returns those of which it knows something."""
        names = {self._names[handle]: handle for handle in handles if self._names.get(handle)}
        found = [step for step in slurm_commands.steps(self.allocation) if step.name in names] if names else []
        if found:
            slurm_commands.cancel([step.id for step in found], "--signal=KILL")
        return {names[step.name] for step in found}
