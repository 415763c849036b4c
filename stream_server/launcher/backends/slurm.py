"""Slurm: the one door to its commands, their options, and what their answers mean.

What asks it raises OSError when the command cannot be run, and subprocess.SubprocessError when the controller does not
answer.

Why: docs/decisions/0050-slurm-commands.md
"""

import math
import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from stream_server.config import walltime_s
from stream_server.config.job_sections import JobSettings
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import LOG_FILE, JobState, JobStatus
from stream_server.launcher.backends.scheduler import (
    MIB,
    BatchJob,
    CommandScheduler,
    NotSubmitted,
    QueueEntry,
    answered,
    call,
    in_words,
    listed,
    option_words,
    out_of_time,
    told_all,
)

# What sbatch may see of ours: its other variables would be options, and reach the job.
PASSED = ("HOME", "LOGNAME", "PATH", "SLURM_CONF", "SLURM_JWT", "TZ", "USER")
DEFAULTS = tuple(f"SBATCH_{name}" for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION"))
FIELDS = ("%i", "%T", "%r", "%l", "%j")

QUEUED = frozenset(
    ("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
)
ENDED: Mapping[str, str] = {
    "BOOT_FAIL": "lost its node, which did not start",
    "CANCELLED": "",
    "COMPLETED": "",
    "DEADLINE": "could not end before its deadline",
    "FAILED": "",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "took more memory than Slurm gave it (simulation.job.memory)",
    "PREEMPTED": "was preempted by Slurm",
    "REVOKED": "was revoked by Slurm",
    "TIMEOUT": "",
}
NOT_ITS_FAULT = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"})

# Patterns of sbatch's words when the number of jobs, not the job, is the reason. One sentence speaks of a "job submit
# limit" and of sizes; the limit is named before it, as in QOSMaxCpuPerJobLimit, which no job of that size ever passes.
FULL = (
    *("SubmitJob", r"^(?!.*\b(QOS|Assoc)\w+Limit\b).*submit limit", "temporarily unable", "Resource temporarily"),
    "MaxJobCount",
)
LIMITS = ("QOSMax", "QOSMin", "QOSGrp", "AssocMax", "AssocGrp")
# The commands are installed, and nothing tells them where the controller is.
NO_CLUSTER = "ould not establish a configuration source"
AWAY = (
    NO_CLUSTER,
    *("Unable to contact", "Socket timed out", "Connection refused", "Connection reset", "Connection timed out"),
    *("Transport endpoint", "Zero Bytes", "standby mode", "Unexpected message", "communication", "Protocol auth"),
)
# Words of srun, whose lines begin so, when no step can begin; of a task that it tells of, the step has begun.
OF_SRUN = "srun: "
UNKNOWN_JOB = "Invalid job id"
NO_STEP = (*AWAY, UNKNOWN_JOB, "already completing", "has expired", "Task launch for")
TASK_ENDED = ": task"
NODE_LOST = "srun: error: Node failure on"
CUT_OFF = "error: *** STEP"


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
    hints = (
        ("nvalid account", "Write simulation.job.account; `sacctmgr show associations user=$USER` lists yours"),
        ("nvalid partition", "Write simulation.job.partition; `sinfo -s` lists what there is"),
        (
            "WallDuration",
            "Write a shorter simulation.job.walltime; `sacctmgr show qos format=name,maxwall` shows the limits",
        ),
        *(
            (limit, "Lower simulation.job to it; `sacctmgr show qos` and `sacctmgr show associations` show it")
            for limit in LIMITS
        ),
        ("time limit", "Write a shorter simulation.job.walltime; `sinfo -o '%R %l'` shows the limits"),
        ("nvalid qos", "Correct simulation.job.options.qos"),
        ("nvalid feature", "Correct simulation.job.options.constraint"),
        (
            "node configuration",
            "No node has so many cores, GPUs or so much memory: lower simulation.job, or choose another partition",
        ),
    )
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
        limit = time_limit_s(resources.partition)
        if resources.walltime is not None and limit is not None and walltime_s(resources.walltime) > limit:
            raise ConfigError(
                f"{self.kind.section}.walltime: {resources.walltime} is longer than the time limit of the partition, "
                f"{in_words(limit)}: such a job would wait for ever"
            )
        try:
            _sbatch(["--test-only", *job_options(resources, ranks)], "#!/bin/sh\n")
        except NotSubmitted as error:
            if NO_CLUSTER in str(error):
                raise ConfigError(
                    f'{self.kind.key}: "slurm", but this machine belongs to no cluster: {error}. Start the study on a '
                    "login node, or let SLURM_CONF name the configuration of the cluster"
                ) from error
            raise

    def submit(self, job: BatchJob) -> str:
        placed = (f"--job-name={job.name}", f"--chdir={job.folder}", f"--output={LOG_FILE}", "--open-mode=append")
        options = ["--parsable", *job_options(self.resources, job.ranks), *placed]
        return _sbatch(options, job.script).strip().partition(";")[0]

    def queue(self) -> list[QueueEntry]:
        return _entries("--all", "--states=all", f"--user={os.getuid()}", f"--format={'|'.join(FIELDS)}")

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        if at_once:
            cancel(ids, "--full", "--signal=KILL")
        cancel(ids)


def entry_of(line: str) -> QueueEntry | None:
    """The entry of a line of squeue in the format `FIELDS` says, None if it is no such line."""
    values = line.split("|", len(FIELDS) - 1)
    if len(values) != len(FIELDS):
        return None
    number, state, reason, limit, name = values
    return QueueEntry(id=number, name=name, status=status_of(state, reason, limit), was_cancelled=state == "CANCELLED")


def status_of(state: str, reason: str, limit: str) -> JobStatus:
    """The meaning of a state of Slurm; `reason` says why a job waits, `limit` how long it may run."""
    if state in QUEUED:
        return JobStatus(state=JobState.QUEUED, reason="" if reason == "None" else reason)
    if state not in ENDED:
        return JobStatus(state=JobState.ENDING if state == "COMPLETING" else JobState.RUNNING)
    if state == "TIMEOUT":
        return out_of_time(seconds_in(limit))
    exit_code, excuse = 0 if state == "COMPLETED" else None, ENDED[state] if state in NOT_ITS_FAULT else ""
    return JobStatus(state=JobState.ENDED, exit_code=exit_code, reason=ENDED[state], excuse=excuse)


def steps(job: str) -> list[QueueEntry]:
    """The steps of a job that run."""
    return _entries("--steps", f"--jobs={job}", "--format=%i|RUNNING|||%j", none_found=UNKNOWN_JOB)


def why_not_begun(log: str) -> str:
    """The words in the log of a step whose srun ended, if Slurm could not begin it; "" if it began, or never could."""
    lines = log.splitlines()
    if any(not line.startswith(OF_SRUN) or TASK_ENDED in line for line in lines):
        return ""
    said = " ".join(line.removeprefix(OF_SRUN).removeprefix("error: ") for line in lines)
    return said if any(words in said for words in NO_STEP) else ""


def is_over(job: str) -> bool:
    """Whether a job has ended, or is about to."""
    state = _told_of(job, "%T")
    return state in ("", "COMPLETING", *ENDED)


def time_left_s(job: str) -> float | None:
    """The time that a job has left; None if it has no limit, or nobody answers."""
    try:
        return seconds_in(_told_of(job, "%L"))
    except (OSError, subprocess.SubprocessError):
        return None


def cancel(numbers: Collection[str], *options: str) -> None:
    """End these jobs or steps; those that have ended are passed over."""
    told_all(["scancel", "--quiet", *options], numbers, away=AWAY)


def time_limit_s(partition: str | None) -> float | None:
    """The longest time of a job in a partition, or else in the default one; None if there is no limit, or no answer."""
    try:
        lines = call(["sinfo", "--noheader", "--all", "--format=%P|%l"]).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    limits = dict(line.rpartition("|")[::2] for line in lines)
    default = next((limit for name, limit in limits.items() if name.endswith("*")), "")
    limit = default if partition is None else limits.get(partition, limits.get(f"{partition}*", ""))
    return seconds_in(limit)


def seconds_in(limit: str) -> float | None:
    """The seconds of [DAYS-]HH:MM:SS, as sinfo writes it with fewer parts where the first are 0, or None."""
    days, _, clock = limit.rpartition("-")
    parts = [*([days] if days else []), *clock.split(":")]
    if not all(part.isdecimal() for part in parts):
        return None
    values = [0, 0, 0, *map(int, clock.split(":"))][-3:]
    hours, minutes, seconds = values
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def _sbatch(options: Sequence[str], script: str) -> str:
    environment = {name: os.environ[name] for name in (*PASSED, *DEFAULTS) if name in os.environ}
    return answered(["sbatch", *options], script, environment, full=FULL, away=AWAY)


def _told_of(job: str, what: str) -> str:
    options = ["--noheader", "--states=all", f"--jobs={job}", f"--format={what}"]
    return listed(["squeue", *options], none_found=UNKNOWN_JOB).strip()


def _entries(*options: str, none_found: str = "") -> list[QueueEntry]:
    lines = listed(["squeue", "--noheader", *options], none_found=none_found).splitlines()
    return [entry for line in lines if (entry := entry_of(line)) is not None]


def resource_options(job: JobSettings, ranks: int, named: Mapping[str, object]) -> list[str]:
    """The options of sbatch and srun for what `ranks` ranks take, and `named` ones."""
    options = [f"--ntasks={ranks}", f"--cpus-per-task={job.cores_per_rank}"]
    if job.gpus_per_rank:
        options.append(f"--gpus-per-task={job.gpus_per_rank}")
    if job.memory is not None:
        options.append(f"--mem-per-cpu={math.ceil(job.memory / job.cores_per_rank / MIB)}M")
    return [*options, *option_words(job, "--", named)]


def job_options(job: JobSettings, ranks: int) -> list[str]:
    """The options of sbatch for a job of `ranks` ranks, without name and place."""
    named = {"nodes": job.nodes, "time": job.walltime, "partition": job.partition, "account": job.account}
    # A job that Slurm starts again by itself would meet its own traces in the folder.
    return [*resource_options(job, ranks, named), "--no-requeue", "--export=NIL"]
