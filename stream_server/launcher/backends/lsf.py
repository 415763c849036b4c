"""The scheduler `lsf`: each job is a job of IBM Spectrum LSF, version 10.1 or later."""

import os
import re
from collections.abc import Collection, Mapping

from stream_server.config import walltime_s
from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.backends.scheduler import (
    MIB,
    BatchJob,
    CommandScheduler,
    QueueEntry,
    answered,
    listed,
    option_words,
    out_of_time,
    parsed,
    told_all,
)

FIELDS = ("jobid", "stat", "exit_reason", "pend_reason", "job_name")
QUEUED = frozenset({"PEND", "PSUSP", "WAIT"})
ENDED = frozenset({"DONE", "EXIT"})
CANCELLED = ("TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "TERM_FORCE_ADMIN")
OUT_OF_TIME = ("TERM_RUNLIMIT", "TERM_DEADLINE")
OVER_MEMORY = "TERM_MEMLIMIT"
NOT_ITS_FAULT = {"TERM_PREEMPT": "was preempted by LSF", "TERM_ZOMBI": "lost its node"}
NONE_FOUND = "job found"
FULL = ("threshold", "job limit", "slot limit", "Too many (?!processors)")
AWAY = (
    *("LSF is down", "Cannot connect to LSF", "Failed in an LSF library call", "not responding", "Connection refused"),
    *("Communication time out", "Connection timed out", "batch daemon"),
)
# More attempts would keep bsub from answering while the site's limits are reached.
ONE_ATTEMPT = {"LSB_NTRIES": "1"}


class Lsf(CommandScheduler):
    """LSF, for the jobs of a study; see `CommandScheduler`."""

    title = "LSF"
    variables: tuple[str, ...] = ("LSB_", "LSF_", "LS_")
    commands = ("bsub", "bkill", "bjobs")
    job_variables = ("LSB_JOBID",)
    hints = (
        ("No such queue", "Write simulation.job.partition; `bqueues` lists the queues"),
        ("roject", "Write simulation.job.account, the project that pays"),
        ("RUNLIMIT", "Write a shorter simulation.job.walltime; `bqueues -l` shows the limits"),
        ("Bad resource requirement", "Correct simulation.job.options.R"),
    )
    option = re.compile(r"[A-Za-z]+")
    no_option = ("this is no option of bsub", 'Write its name without a dash, such as "app"')
    own_options = frozenset(
        (
            *("I", "IS", "ISp", "ISs", "Ip", "Is", "J", "Jd", "K", "L", "cwd", "e", "env", "eo", "i", "is", "o"),
            *("oo", "pack", "r", "rn", "tty"),
        )
    )
    keys: Mapping[str, str] = {
        "P": "simulation.job.account",
        "W": "simulation.job.walltime",
        "gpu": "simulation.job.gpus_per_rank",
        "n": "simulation.ranks",
        "q": "simulation.job.partition",
    }

    def submit(self, job: BatchJob) -> str:
        """Call bsub, which gives the job nothing of our environment."""
        placing = ["-J", job.name, "-cwd", str(job.folder), "-o", "/dev/null", "-env", "none", "-rn"]
        command = ["bsub", *placing, *resource_words(self.resources, job.ranks)]
        told = answered(command, job.script, {**os.environ, **ONE_ATTEMPT}, full=FULL, away=AWAY)
        # Job <123> is submitted to queue <normal>.
        return told.partition("<")[2].partition(">")[0]

    def queue(self) -> list[QueueEntry]:
        told = listed(["bjobs", "-a", "-json", "-o", " ".join(FIELDS)], none_found=NONE_FOUND)
        return entries_in(told, self.resources.walltime)

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        told_all(["bkill", *(["-s", "KILL"] if at_once else [])], ids, away=AWAY)


def resource_words(job: JobSettings, ranks: int) -> list[str]:
    """The options of bsub for a job of `ranks` ranks, each of which is a task."""
    words = ["-n", str(ranks)]
    if job.cores_per_rank > 1:
        words += ["-R", f"affinity[core({job.cores_per_rank})]"]
    if job.memory is not None:
        words += ["-R", f"rusage[mem={-(-job.memory // MIB)}MB/task]"]
    if job.nodes is not None:
        words += ["-R", "span[hosts=1]" if job.nodes == 1 else f"span[ptile={-(-ranks // job.nodes)}]"]
    if job.gpus_per_rank:
        words += ["-gpu", f"num={job.gpus_per_rank}/task"]
    if job.walltime is not None:
        minutes = -(-int(walltime_s(job.walltime)) // 60)
        words += ["-W", f"{minutes // 60}:{minutes % 60:02d}"]
    return [*words, *option_words(job, "-", {"q": job.partition, "P": job.account})]


def entries_in(told: str, walltime: str | None = None) -> list[QueueEntry]:
    """The jobs in the JSON of bjobs; those of the study have this walltime.

    Raises:
        subprocess.SubprocessError: it is none.
    """
    records: list[Mapping[str, str]] = parsed(told, "bjobs").get("RECORDS", [])
    return [
        QueueEntry(
            id=record["JOBID"],
            name=record.get("JOB_NAME", ""),
            status=status_of(record, walltime),
            was_cancelled=record.get("EXIT_REASON", "").startswith(CANCELLED),
        )
        for record in records
        if "JOBID" in record
    ]


def status_of(record: Mapping[str, str], walltime: str | None) -> JobStatus:
    """The status of a job, from LSF's words."""
    state, why = record.get("STAT", ""), record.get("EXIT_REASON", "")
    if state in QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=record.get("PEND_REASON", "").strip().rstrip(";"))
    if state not in ENDED:
        return JobStatus(state=JobState.RUNNING)
    if why.startswith(OUT_OF_TIME):
        return out_of_time(None if walltime is None else walltime_s(walltime))
    if why.startswith(OVER_MEMORY):
        return JobStatus(state=JobState.ENDED, reason="took more memory than LSF gave it (simulation.job.memory)")
    excuse = next((told for words, told in NOT_ITS_FAULT.items() if why.startswith(words)), "")
    return JobStatus(state=JobState.ENDED, exit_code=0 if state == "DONE" else None, reason=excuse, excuse=excuse)
