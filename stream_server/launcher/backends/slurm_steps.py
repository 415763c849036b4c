"""The backend `slurm-steps`: each job is a step of the allocation of Slurm in which the launcher runs.

A step is started by `srun`, a process of this node: a local job, as far as it can be seen from here. What it started on
other nodes is asked of Slurm.
"""

import contextlib
import logging
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends import job_script, slurm_commands, slurm_options
from stream_server.launcher.backends.backend import JobSpec, JobState, JobStatus, SavedJob
from stream_server.launcher.backends.environment import OF_SRUN
from stream_server.launcher.backends.local import GRACE_S, LocalBackend
from stream_server.launcher.backends.scheduler import require
from stream_server.storage.disk import read_text

COMMANDS = ("srun", "scancel", "squeue")
ALLOCATION = "SLURM_JOB_ID"
# What srun would take for its own options: they are those of the batch script.
OF_THE_SCRIPT = (
    *("SLURM_CPUS_PER", "SLURM_EXACT", *OF_SRUN, "SLURM_GPUS", "SLURM_JOB_NUM_NODES", "SLURM_MEM_PER"),
    *("SLURM_NNODES", "SLURM_OVERLAP", "SLURM_WHOLE"),
)
LOOK_S = 3.0
SIGNALLED = 128
WAITS = JobStatus(state=JobState.QUEUED, reason="no cores of the allocation are free")
STEP_FILE = "job.name"

log = logging.getLogger(__name__)


class SlurmSteps(LocalBackend):
    """Steps of the allocation; see `Backend`.

    Raises:
        ConfigError: there is no allocation, or the commands of Slurm are not here.
    """

    query_interval_s = 0.2

    def __init__(self, config: StudyConfig, *, grace_s: float = GRACE_S) -> None:
        super().__init__(config, grace_s=grace_s)
        require(*COMMANDS)
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
        self._not_begun: dict[str, bool] = {}
        self._look_at = 0.0

    def check(self) -> None:
        """See whether a step fits into the allocation.

        Raises:
            ConfigError: it does not: `srun` would refuse it.
        """
        size = slurm_options.AllocationSize.of(os.environ)
        if size is not None and (problem := size.problem(self.resources, self.ranks)):
            raise ConfigError(problem)

    def submit(self, spec: JobSpec) -> str:
        """Start a step, which waits for cores of the allocation that no other step has.

        Raises:
            SubmitError: the system refuses another process.
        """
        name = job_script.job_name(self.study, spec.folder, secrets.token_hex(6))
        options = [*slurm_options.resource_options(self.resources, self.ranks), "--exact", "--quiet"]
        options += [f"--jobid={self.allocation}", f"--job-name={name}"]
        if self.ranks == 1:
            options.append("--nodes=1")
        environment = {key: value for key, value in spec.environment.items() if not key.startswith(OF_THE_SCRIPT)}
        (spec.folder / STEP_FILE).write_text(name)
        step = replace(spec, command=("srun", *options, *spec.command), environment=environment)
        handle = super().submit(step)
        self._names[handle] = name
        self._not_begun[handle] = False
        self._look_at = max(self._look_at, time.monotonic() + LOOK_S)
        return handle

    def reattach(self, job: SavedJob) -> str:
        """Watch a step of another launcher."""
        handle = super().reattach(job)
        file = job.folder / STEP_FILE
        self._names[handle] = read_text(file) if file.exists() else ""
        return handle

    def cancel(self, handles: Collection[str]) -> None:
        """TERM to all processes of these steps; srun passes it on, and Slurm kills what is left."""
        self._cancelled |= set(handles)
        super().cancel(handles)

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Look at these steps; one whose srun was killed has ended once Slurm knows no such step any more."""
        statuses = dict(super().query([handle for handle in handles if handle not in self._outlived]))
        for handle, status in statuses.items():
            # An srun that a signal ended may have left its step behind.
            is_clear = status.exit_code is not None and status.exit_code < SIGNALLED and handle not in self._cancelled
            if status.state is JobState.ENDED and not is_clear:
                self._outlived[handle] = status
            if status.state is not JobState.RUNNING:
                self._not_begun.pop(handle, None)
        statuses |= dict.fromkeys((handle for handle, waits in self._look().items() if waits), WAITS)
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
        self._end_steps(self._names)

    def _look(self) -> Mapping[str, bool]:
        """The steps that Slurm is not known to have begun; whether they were waiting at the last look."""
        if self._not_begun and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            with _unless_slurm_is_away():
                begun = {step.name for step in slurm_commands.steps(self.allocation)}
                self._not_begun = {handle: True for handle in self._not_begun if self._names[handle] not in begun}
        return self._not_begun

    def _end_steps(self, handles: Collection[str]) -> Collection[str]:
        """Kill what Slurm knows of these steps; returns those of which it may still run something."""
        names = {self._names[handle]: handle for handle in handles if self._names.get(handle)}
        if not names:
            return ()
        with _unless_slurm_is_away():
            found = [step for step in slurm_commands.steps(self.allocation) if step.name in names]
            if found:
                slurm_commands.cancel([step.id for step in found], "--signal=KILL")
            return {names[step.name] for step in found}
        return names.values()


@contextlib.contextmanager
def _unless_slurm_is_away() -> Iterator[None]:
    """Give up for now if Slurm does not answer."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("Slurm does not answer, and is asked again: %s", error)
