"""The backend `pbs`: each job is a job of PBS Professional or OpenPBS."""

import os
import pwd
from collections.abc import Collection, Mapping
from typing import Any

from stream_server.config import StudyConfig, walltime_s
from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.scheduler import (
    MANY,
    MIB,
    BatchJob,
    CommandScheduler,
    JobKind,
    QueueEntry,
    answered,
    call,
    listed,
    option_words,
    out_of_time,
    parsed,
    told_all,
)

QUEUED = frozenset("HQTW")
ENDED = frozenset("FX")
# Exit_status of a job that PBS itself has ended.
OVER_MEMORY = frozenset({-26, -27})
OUT_OF_TIME = -29
NO_HISTORY = "job history"
UNKNOWN_JOB = "Unknown Job Id"
FULL = ("would exceed",)
AWAY = (
    *("cannot connect to server", "Connection refused", "Connection timed out", "Communication failure"),
    *("Server shutting down", "pbs_iff", "End of File", "Premature end of message", "Request timed out"),
)
HINTS = (
    ("nknown queue", "Write simulation.job.partition; `qstat -Q` lists the queues"),
    ("nvalid account", "Write simulation.job.account"),
    ("resource limits", "Lower simulation.job, or choose another queue (simulation.job.partition)"),
    ("cannot access queue", "Choose another queue (simulation.job.partition)"),
)


class Pbs(CommandScheduler):
    """PBS, for the jobs of a study; see `Scheduler`."""

    title = "PBS"
    variables: tuple[str, ...] = ("PBS_",)
    commands = ("qsub", "qdel", "qsig", "qstat", "qselect")
    hints = HINTS

    def __init__(self, kind: JobKind) -> None:
        super().__init__(kind)
        self._has_history = True

    def submit(self, job: BatchJob) -> str:
        """Call qsub, which gives the job nothing of our environment."""
        placing = ["-N", job.name, "-j", "oe", "-o", "/dev/null", "-r", "n"]
        command = ["qsub", *placing, *resource_words(self.resources, job.ranks)]
        return answered(command, job.script, full=FULL, away=AWAY).strip()

    def queue(self) -> list[QueueEntry]:
        """Call qselect, and qstat for what that has found."""
        ids = self._ids()
        found: list[QueueEntry] = []
        for begin in range(0, len(ids), MANY):
            told = listed(
                ["qstat", *self._history, "-f", "-F", "json", *ids[begin : begin + MANY]], none_found=UNKNOWN_JOB
            )
            found += entries_in(told)
        return found

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """Call qdel."""
        if at_once:
            told_all(["qsig", "-s", "SIGKILL"], ids, away=AWAY)
        told_all(["qdel"], ids, away=AWAY)

    def _ask(self) -> object:
        return self._ids()

    @property
    def _history(self) -> list[str]:
        return ["-x"] if self._has_history else []

    def _ids(self) -> list[str]:
        """The jobs of this user; those that have ended, too, where the site keeps them."""
        command = ["qselect", "-u", pwd.getpwuid(os.getuid()).pw_name]
        if self._has_history:
            done = call([*command, "-x"])
            if done.returncode == 0:
                return done.stdout.split()
            self._has_history = NO_HISTORY not in done.stderr
        return listed([*command, *self._history]).split()


class PbsBackend(BatchBackend):
    """Jobs of PBS, of the simulations unless it says which `kind`. The `times` are those of `BatchBackend`."""

    def __init__(self, config: StudyConfig, kind: JobKind | None = None, **times: float) -> None:
        kind = kind or JobKind.of_simulations(config)
        super().__init__(kind, Pbs(kind), **times)


def resource_words(job: JobSettings, ranks: int) -> list[str]:
    """The options of qsub for a job of `ranks` ranks: a chunk for each rank, or one for each of the nodes."""
    num_chunks = job.nodes or ranks
    of_chunk = -(-ranks // num_chunks)
    chunk = f"{num_chunks}:ncpus={of_chunk * job.cores_per_rank}:mpiprocs={of_chunk}"
    if job.gpus_per_rank:
        chunk += f":ngpus={of_chunk * job.gpus_per_rank}"
    if job.memory is not None:
        chunk += f":mem={of_chunk * -(-job.memory // MIB)}mb"
    words = ["-l", f"select={chunk}"]
    if job.nodes is not None:
        words += ["-l", "place=scatter"]
    for option, value in (("-l", job.walltime and f"walltime={job.walltime}"), ("-q", job.partition)):
        words += [] if value is None else [option, value]
    words += [] if job.account is None else ["-A", job.account]
    return [*words, *option_words(job, "-")]


def entries_in(told: str) -> list[QueueEntry]:
    """The jobs in the JSON of qstat.

    Raises:
        subprocess.SubprocessError: it is none.
    """
    jobs: Mapping[str, Mapping[str, Any]] = parsed(told, "qstat", "Jobs") or {}
    return [QueueEntry(id=id_, name=str(job.get("Job_Name")), status=status_of(job)) for id_, job in jobs.items()]


def status_of(job: Mapping[str, Any]) -> JobStatus:
    """The status of a job, from PBS's words."""
    state, code = str(job.get("job_state")), job.get("Exit_status")
    if state in QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=str(job.get("comment", "")).removeprefix("Not Running: "))
    if state not in ENDED:
        return JobStatus(state=JobState.ENDING if state == "E" else JobState.RUNNING)
    if code == OUT_OF_TIME:
        limit = str(job.get("Resource_List", {}).get("walltime", ""))
        try:
            limit_s = walltime_s(limit)
        except ValueError:
            limit_s = None
        return out_of_time(limit_s)
    if code in OVER_MEMORY:
        return JobStatus(state=JobState.ENDED, reason="took more memory than PBS gave it (simulation.job.memory)")
    return JobStatus(state=JobState.ENDED, exit_code=0 if code == 0 else None)
