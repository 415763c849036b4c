"""Slurm's commands: the one door to them, what they are asked, and what their answers mean."""

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobState, JobStatus

LIMIT_S = 60.0
# What sbatch may see of ours: its other variables would be options, and reach the job.
PASSED = ("HOME", "LOGNAME", "PATH", "SLURM_CONF", "SLURM_JWT", "TZ", "USER")
DEFAULTS = tuple(f"SBATCH_{name}" for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION"))
# So many job numbers fit on a command line.
MANY = 1000
FIELDS = ("%i", "%T", "%r", "%j")

QUEUED = frozenset(
    ("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
)
ENDED: Mapping[str, str] = {
    "BOOT_FAIL": "lost its node, which did not start",
    "CANCELLED": "was cancelled from outside",
    "COMPLETED": "",
    "DEADLINE": "could not end before its deadline",
    "FAILED": "",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "took more memory than Slurm gave it (simulation.job.memory)",
    "PREEMPTED": "was preempted by Slurm",
    "REVOKED": "was revoked by Slurm",
    "TIMEOUT": "reached its time limit (simulation.job.walltime)",
}
NOT_ITS_FAULT = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"})

# Words of sbatch when the site's limits, not the job, are the reason.
FULL = ("submit limit", "SubmitJobLimit", "SubmitJobPer", "temporarily unable", "Resource temporarily", "MaxJobCount")
AWAY = (
    *("Unable to contact", "Socket timed out", "Connection refused", "Connection reset", "Connection timed out"),
    *("Transport endpoint", "Zero Bytes", "standby mode", "Unexpected message", "communication", "Protocol auth"),
)
HINTS = (
    ("nvalid account", "Write simulation.job.account; `sacctmgr show associations user=$USER` lists yours"),
    ("nvalid partition", "Write simulation.job.partition; `sinfo -s` lists what there is"),
    ("time limit", "Write a shorter simulation.job.walltime; `sinfo -o '%R %l'` shows the limits"),
    ("nvalid qos", "Correct simulation.job.options.qos"),
    ("nvalid feature", "Correct simulation.job.options.constraint"),
    (
        "node configuration",
        "No node has so many cores, GPUs or so much memory: lower simulation.job, or choose another partition",
    ),
)


class SubmitRefusal(StrEnum):
    """Why sbatch said no: `FULL`, a limit of the site; `AWAY`, no word of the controller; `WRONG`, the job itself.

    After `AWAY` the job may be in the queue nevertheless.
    """

    FULL = "full"
    AWAY = "away"
    WRONG = "wrong"


class NotSubmitted(Exception):
    """sbatch said no."""

    def __init__(self, refusal: SubmitRefusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """A job, or a step, in the queue. `reason` says why it waits."""

    id: str
    state: str
    reason: str
    name: str

    @classmethod
    def of(cls, line: str) -> Self | None:
        values = line.split("|", len(FIELDS) - 1)
        if len(values) != len(FIELDS):
            return None
        number, state, reason, name = values
        return cls(id=number, state=state, reason=reason, name=name)

    @property
    def status(self) -> JobStatus:
        """The meaning of its state for the launcher."""
        if self.state in ENDED:
            reason = ENDED[self.state]
            code = 0 if self.state == "COMPLETED" else None
            excuse = reason if self.state in NOT_ITS_FAULT else ""
            return JobStatus(state=JobState.ENDED, exit_code=code, reason=reason, excuse=excuse)
        if self.state in QUEUED:
            return JobStatus(state=JobState.QUEUED, reason="" if self.reason == "None" else self.reason)
        return JobStatus(state=JobState.ENDING if self.state == "COMPLETING" else JobState.RUNNING)


def require(*commands: str) -> None:
    """See that Slurm's commands are here.

    Raises:
        ConfigError: one is not.
    """
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"launcher.backend: {' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not found on PATH. "
            "Start the study on a login node of the cluster, or load the module that brings Slurm's commands"
        )


def submit(options: Sequence[str], script: str) -> str:
    """Queue a job; returns its number.

    Raises:
        NotSubmitted: sbatch refuses it, or does not answer.
    """
    return _sbatch(["--parsable", *options], script).strip().partition(";")[0]


def check(options: Sequence[str], script: str) -> None:
    """Ask whether such a job would be taken.

    Raises:
        NotSubmitted: it would not, or nobody answers.
    """
    _sbatch(["--test-only", *options], script)


def queue() -> list[QueueEntry]:
    """All jobs of this user that Slurm knows, also those that have ended lately.

    Raises:
        OSError: squeue cannot be run.
        subprocess.SubprocessError: the controller does not answer.
    """
    return _entries("--all", "--states=all", f"--user={os.getuid()}", f"--format={'|'.join(FIELDS)}")


def steps(job: str) -> list[QueueEntry]:
    """The steps of a job that run.

    Raises:
        OSError: squeue cannot be run.
        subprocess.SubprocessError: the controller does not answer.
    """
    return _entries("--steps", f"--jobs={job}", "--format=%i|RUNNING||%j")


def cancel(numbers: Collection[str], *options: str) -> None:
    """End these jobs or steps; those that have ended are passed over.

    Raises:
        OSError: scancel cannot be run.
        subprocess.SubprocessError: the controller does not answer.
    """
    ordered = sorted(numbers)
    for begin in range(0, len(ordered), MANY):
        done = _run(["scancel", "--quiet", *options, *ordered[begin : begin + MANY]])
        if done.returncode and any(words in done.stderr for words in AWAY):
            raise subprocess.CalledProcessError(done.returncode, "scancel", stderr=done.stderr)


def time_limit_s(partition: str | None) -> float | None:
    """The longest time of a job in a partition, or else in the default one; None if there is no limit, or no answer."""
    try:
        lines = _run(["sinfo", "--noheader", "--all", "--format=%P|%l"]).stdout.splitlines()
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


def hint(message: str) -> str:
    """The advice to a user whose job is refused, "" if none is known."""
    return next((told for words, told in HINTS if words in message), "")


def refusal_of(message: str, code: int) -> SubmitRefusal:
    """Tell the kind of a refusal from the words and the exit code of sbatch."""
    if any(words in message for words in FULL):
        return SubmitRefusal.FULL
    # Killed by a signal: what it has done is not known.
    return SubmitRefusal.AWAY if code < 0 or any(words in message for words in AWAY) else SubmitRefusal.WRONG


def _sbatch(options: Sequence[str], script: str) -> str:
    environment = {name: os.environ[name] for name in (*PASSED, *DEFAULTS) if name in os.environ}
    try:
        done = _run(["sbatch", *options], script, environment)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotSubmitted(SubmitRefusal.AWAY, f"sbatch: {error}") from error
    if done.returncode == 0:
        return done.stdout
    message = " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines())
    raise NotSubmitted(refusal_of(message, done.returncode), message or f"sbatch ended with {done.returncode}")


def _entries(*options: str) -> list[QueueEntry]:
    done = _run(["squeue", "--noheader", *options])
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "squeue", stderr=done.stderr)
    entries = (QueueEntry.of(line) for line in done.stdout.splitlines())
    return [entry for entry in entries if entry is not None]


def _run(
    command: Sequence[str], input_text: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    # In a session of its own: a Ctrl-C is for us.
    return subprocess.run(
        command,
        env={**(os.environ if environment is None else environment), "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
        input=input_text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        start_new_session=True,
    )
