"""The scheduler `flux`: each job is a job of Flux."""

import re
from collections.abc import Collection, Mapping

from stream_server.config import walltime_s
from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    QueueEntry,
    answered,
    listed,
    option_words,
    out_of_time,
    told_all,
)

FIELDS = (*("{id}", "{state}", "{result}", "{name}", "{annotations.sched.reason_pending}", "{exception.note}"),)
# By default flux jobs lists the newest 1000.
MOST = 1_000_000
QUEUED = frozenset({"NEW", "DEPEND", "PRIORITY", "SCHED"})
NODE_LOST = ("lost contact", "node failure")
# Flux keeps what a job prints on its nodes, as far as the job does not write it into a file.
NOWHERE = "/dev/null"
FULL = ("exceeds limit", "max jobs", "job limit", "temporarily unavailable")
AWAY = (
    *("Unable to connect", "Connection refused", "Connection reset", "Connection timed out", "No such file or direct"),
    *("broker", "Host is unreachable", "Function not implemented"),
)


class Flux(CommandScheduler):
    """Flux, for the jobs of a study; see `CommandScheduler`."""

    title = "Flux"
    variables: tuple[str, ...] = ("FLUX_", "PMI_")
    rank_variables: tuple[str, ...] = ("FLUX_TASK_", "FLUX_PMI_")
    job_variables = ("FLUX_JOB_ID",)
    commands = ("flux",)
    hints = (
        ("queue", "Write simulation.job.partition; `flux queue list` lists the queues"),
        ("bank", "Write simulation.job.account, the bank that pays"),
        ("duration", "Write a shorter simulation.job.walltime; `flux queue list` shows the limits"),
        ("unsatisfiable", "No node has so many cores or GPUs: lower simulation.job"),
    )
    not_given_out: Mapping[str, str] = {"memory": "Flux does not give out memory"}
    option = re.compile(r"[a-z][a-z0-9-]+")
    no_option = ("this is no long option of flux submit", 'Write its name without dashes, such as "setattr"')
    own_options = frozenset(
        ("cc", "bcc", "cwd", "dry-run", "env", "error", "input", "job-name", "output", "wait", "watch")
    )
    keys: Mapping[str, str] = {
        "bank": "simulation.job.account",
        "cores-per-task": "simulation.job.cores_per_rank",
        "gpus-per-task": "simulation.job.gpus_per_rank",
        "nodes": "simulation.job.nodes",
        "ntasks": "simulation.ranks",
        "queue": "simulation.job.partition",
        "time-limit": "simulation.job.walltime",
    }

    def submit(self, job: BatchJob) -> str:
        """Call flux submit; of several ranks flux batch, which makes of their nodes an instance of its own."""
        placing = [f"--job-name={job.name}", f"--cwd={job.folder}", f"--output={NOWHERE}", "--env=-*"]
        options = [*placing, *resource_words(self.resources, job.ranks)]
        if job.ranks == 1:
            return answered(["flux", "submit", *options, "/bin/bash", "-c", job.script], full=FULL, away=AWAY).strip()
        return answered(["flux", "batch", *options], job.script, full=FULL, away=AWAY).strip()

    def queue(self) -> list[QueueEntry]:
        told = listed(["flux", "jobs", "-a", "-n", "-c", str(MOST), "-o", "|".join(FIELDS)])
        entries = (entry_of(line, self.resources.walltime) for line in told.splitlines())
        return [entry for entry in entries if entry is not None]

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """Call flux cancel; Flux itself kills what is left a few seconds later, and has no quicker way."""
        told_all(["flux", "cancel"], ids, away=AWAY)

    def _ask(self) -> object:
        return listed(["flux", "jobs", "-n", "-c", "1", "-o", "{id}"])


def resource_words(job: JobSettings, ranks: int) -> list[str]:
    """The options of flux submit and flux batch for a job of `ranks` ranks, each of which is a task or a slot."""
    words = [f"-n{ranks}", f"-c{job.cores_per_rank}"]
    words += [f"-g{job.gpus_per_rank}"] if job.gpus_per_rank else []
    walltime = None if job.walltime is None else f"{walltime_s(job.walltime):g}s"
    named = {"nodes": job.nodes, "time-limit": walltime, "queue": job.partition, "bank": job.account}
    return [*words, *option_words(job, "--", named)]


def entry_of(line: str, walltime: str | None = None) -> QueueEntry | None:
    """The entry of a line of flux jobs in the format `FIELDS`, None if it is no such line."""
    values = line.split("|", len(FIELDS) - 1)
    if len(values) != len(FIELDS):
        return None
    id_, state, result, name, pending, note = values
    status = status_of(state, result, pending, walltime)
    if status.state is JobState.ENDED and any(words in note for words in NODE_LOST):
        status = JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node")
    return QueueEntry(id=id_, name=name, status=status, was_cancelled=result == "CANCELED")


def status_of(state: str, result: str, pending: str, walltime: str | None) -> JobStatus:
    """The status of a job, from Flux's words; `pending` is why it waits."""
    if state in QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=pending)
    if state != "INACTIVE":
        return JobStatus(state=JobState.ENDING if state == "CLEANUP" else JobState.RUNNING)
    if result == "TIMEOUT":
        return out_of_time(None if walltime is None else walltime_s(walltime))
    return JobStatus(state=JobState.ENDED, exit_code=0 if result == "COMPLETED" else None)
