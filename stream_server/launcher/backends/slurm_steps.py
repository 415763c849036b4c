"""The backend `slurm-steps`: each job is a step of the allocation of Slurm in which the launcher runs.

A step is started by `srun`, a process of this node: a local job, as far as it can be seen from here. What it started on
other nodes is asked of Slurm. An srun that could not begin its step, since Slurm did not answer, is started again.

Why: docs/decisions/0052-slurm-steps.md
"""

import math
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends import job_script, slurm
from stream_server.launcher.backends.allocation import Allocation
from stream_server.launcher.backends.backend import (
    EXIT_FILE,
    LOG_FILE,
    NAME_FILE,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    SubmitError,
)
from stream_server.launcher.backends.batch_backend import RETRY_S
from stream_server.launcher.backends.environment import OF_SRUN
from stream_server.launcher.backends.local import GRACE_S, LocalBackend
from stream_server.launcher.backends.scheduler import JobKind, require
from stream_server.machine.log_end import log_end
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
NO_CORES = "no cores of the allocation are free"
NO_STEPS = "Slurm begins no steps"
LOST_NODE = "lost its node"
ALLOCATION_END = "the end of its allocation"
NOT_LISTED = "Slurm does not list the steps of the allocation"


@dataclass(kw_only=True, slots=True)
class _Step:
    """A step of this name, in the folder of its job.

    `spec` starts its srun, and is there until Slurm is known to have begun it; `waits_for` says why it has not. At
    `retry_at` srun is started again. `end` is how srun ended, when Slurm is still to say whether the step has, too.
    `is_cut_off`: Slurm has ended it. `asked_from`: what Slurm was asked before that time tells nothing of it.
    """

    name: str
    folder: Path
    spec: JobSpec | None = None
    waits_for: str = ""
    retry_at: float = math.inf
    is_taken_over: bool = False
    is_cancelled: bool = False
    is_cut_off: bool = False
    asked_from: float = 0.0
    end: JobStatus | None = None

    @property
    def has_srun(self) -> bool:
        return self.end is None and self.retry_at == math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listing:
    """The names of the steps that Slurm ran when it was asked, at `began`, and whether the allocation was over."""

    began: float
    names: frozenset[str]
    is_over: bool


class SlurmSteps(LocalBackend):
    """Steps of the allocation; see `Backend`. `outage` tells when Slurm does not begin or list them.

    Slurm is asked in the thread `steps`, for an answer may take long; what that raises, `query` raises.

    Raises:
        ConfigError: there is no allocation, or the commands of Slurm are not here.
    """

    query_interval_s = 0.2

    def __init__(
        self,
        config: StudyConfig,
        kind: JobKind | None = None,
        *,
        grace_s: float = GRACE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        super().__init__(config, kind, grace_s=grace_s)
        self.kind = JobKind.of_simulations(config)
        slurm.Slurm.check_settings(self.kind)
        require(*COMMANDS)
        if ALLOCATION not in os.environ:
            raise ConfigError(
                'launcher.backend: "slurm-steps" runs the simulations within an allocation of Slurm, and there is none '
                'here. Start the study from a batch script or under `salloc`, or write "slurm"'
            )
        self.allocation = os.environ[ALLOCATION]
        self.retry_s = retry_s
        self._steps: dict[str, _Step] = {}
        self._ask_at = 0.0
        self._pool = ThreadPoolExecutor(1, "steps")
        self._asked: Future[_Listing] | None = None

    def check(self) -> None:
        """See whether a step fits into the allocation.

        Raises:
            ConfigError: it does not: `srun` would refuse it.
        """
        allocation = Allocation.found()
        if allocation is not None and (problem := allocation.problem(self.kind.resources, self.kind.ranks)):
            raise ConfigError(problem)

    def submit(self, spec: JobSpec) -> str:
        """Start a step, which waits for cores of the allocation that no other step has.

        Raises:
            SubmitError: the system refuses another process.
        """
        name = job_script.job_name(self.kind.study, spec.folder, secrets.token_hex(6))
        named = {"exact": True, "quiet": True, "jobid": self.allocation, "job-name": name}
        if self.kind.ranks == 1:
            named["nodes"] = 1
        options = slurm.resource_options(self.kind.resources, self.kind.ranks, named)
        environment = {key: value for key, value in spec.environment.items() if not key.startswith(OF_THE_SCRIPT)}
        (spec.folder / NAME_FILE).write_text(name)
        srun = replace(spec, command=("srun", *options, *spec.command), environment=environment)
        handle = super().submit(srun)
        self._steps[handle] = _Step(name=name, folder=spec.folder, spec=srun, asked_from=time.monotonic() + LOOK_S)
        return handle

    def reattach(self, job: SavedJob) -> str:
        """Watch a step of another launcher."""
        handle = super().reattach(job)
        file = job.folder / NAME_FILE
        name = read_text(file) if file.exists() else ""
        self._steps[handle] = _Step(name=name, folder=job.folder, is_taken_over=True)
        return handle

    def cancel(self, handles: Collection[str]) -> None:
        """TERM to all processes of these steps; srun passes it on, and Slurm kills what is left."""
        for step in (self._steps[handle] for handle in handles if handle in self._steps):
            step.is_cancelled = True
            if step.retry_at < math.inf:
                step.name = ""
                step.end = JobStatus(state=JobState.ENDED, reason="was cancelled before Slurm had begun its step")
        super().cancel(handles)

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        """Look at these steps; one whose srun was killed has ended once Slurm knows no such step any more."""
        steps = {handle: self._steps[handle] for handle in handles if handle in self._steps}
        for handle, step in steps.items():
            if step.end is None and time.monotonic() >= step.retry_at:
                self._start_again(handle, step)
        statuses = dict(super().query([handle for handle, step in steps.items() if step.has_srun]))
        for handle, status in statuses.items():
            if status.state is JobState.ENDED:
                self._srun_ended(steps[handle], status)
        self._take_listing()
        self._ask()
        for handle, step in steps.items():
            if step.end is not None:
                statuses[handle] = JobStatus(state=JobState.ENDING) if step.name else step.end
            elif step.waits_for and not step.is_cancelled:
                statuses[handle] = JobStatus(state=JobState.QUEUED, reason=step.waits_for)
            if handle in statuses and statuses[handle].state is JobState.ENDED:
                del self._steps[handle]
        if not any(step.waits_for not in ("", NO_CORES) for step in self._steps.values()):
            self.outage.answered(NO_STEPS)
        return statuses

    def close(self) -> None:
        """Kill what still runs."""
        super().close()
        self._pool.shutdown()
        if names := {step.name for step in self._steps.values()} - {""}:
            with self.outage.within(NOT_LISTED):
                self._list(names)

    def _start_again(self, handle: str, step: _Step) -> None:
        assert step.spec is not None
        for name in (EXIT_FILE, LOG_FILE):
            (step.folder / name).unlink(missing_ok=True)
        try:
            # The handle stays that of the first srun; a launcher that takes over finds this one by its marks.
            self._jobs[handle] = self._jobs.pop(super().submit(step.spec))
        except SubmitError as error:
            step.end = JobStatus(state=JobState.ENDED, exit_code=error.exit_code, reason=str(error))
        step.retry_at, step.asked_from = math.inf, time.monotonic() + LOOK_S

    def _srun_ended(self, step: _Step, end: JobStatus) -> None:
        said = log_end(step.folder / LOG_FILE)
        why = slurm.why_not_begun(said) if end.exit_code else ""
        if why:
            self.outage.unanswered(NO_STEPS, subprocess.SubprocessError(why))
            if step.spec is not None and not step.is_cancelled:
                step.waits_for, step.retry_at = why, time.monotonic() + self.retry_s
                return
            end = replace(end, reason=f"could not be begun by Slurm: {why}", excuse=NO_STEPS)
        elif slurm.NODE_LOST in said:
            # srun ends with 0 then.
            end = replace(end, exit_code=SIGNALLED, reason=LOST_NODE, excuse=LOST_NODE)
        step.spec, step.waits_for, step.end, step.asked_from = None, "", end, time.monotonic()
        step.is_cut_off = slurm.CUT_OFF in said and not step.is_cancelled
        is_clear = end.exit_code is not None and end.exit_code < SIGNALLED
        if is_clear and not step.is_cancelled and not step.is_cut_off:
            step.name = ""
        self._ask_at = min(self._ask_at, time.monotonic())

    def _ask(self) -> None:
        """Let the thread ask which steps Slurm runs, and kill those of which the srun has ended."""
        ended = {step.name for step in self._steps.values() if step.end is not None} - {""}
        waiting = any(step.spec is not None and step.has_srun for step in self._steps.values())
        if self._asked is None and (ended or waiting) and time.monotonic() >= self._ask_at:
            self._asked = self._pool.submit(self._list, ended)

    def _list(self, ended: Collection[str]) -> _Listing:
        began = time.monotonic()
        found = slurm.steps(self.allocation)
        if left := [step.id for step in found if step.name in ended]:
            slurm.cancel(left, "--signal=KILL")
        is_over = bool(ended) and slurm.is_over(self.allocation)
        return _Listing(began=began, names=frozenset(step.name for step in found), is_over=is_over)

    def _take_listing(self) -> None:
        if self._asked is None or not self._asked.done():
            return
        asked, self._asked = self._asked, None
        now = time.monotonic()
        self._ask_at = now + LOOK_S
        with self.outage.within(NOT_LISTED):
            listing = asked.result()
            for step in self._steps.values():
                if listing.began >= step.asked_from:
                    self._take(step, listing)
            is_awaited = any(step.end is not None and step.name for step in self._steps.values())
            pause_s = self.query_interval_s if is_awaited else LOOK_S
            self._ask_at = now + max(pause_s, now - listing.began)

    def _take(self, step: _Step, listing: _Listing) -> None:
        if step.end is not None and step.name not in listing.names:
            step.name = ""
            if step.is_cut_off and (listing.is_over or step.is_taken_over):
                step.end = replace(step.end, reason=f"ended with {ALLOCATION_END}", excuse=ALLOCATION_END)
        elif step.spec is not None and step.has_srun:
            if step.name in listing.names:
                step.spec, step.waits_for = None, ""
            else:
                step.waits_for = step.waits_for or NO_CORES
