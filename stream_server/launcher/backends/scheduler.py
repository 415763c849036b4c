"""The protocol of batch schedulers, its answers, and the door to their commands."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from stream_server.config import StudyConfig
from stream_server.config.job_sections import JobSettings
from stream_server.config.problems import Problem, config_error, shown
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.wording import counted

LIMIT_S = 60.0
# So many job numbers fit on a command line.
MANY = 1000
MIB = 2**20
MAX_SHOWN = 200
# OAR's commands run as OAR's user, so that nobody else can end them, and wait as long as its database is away.
_unanswered: list[tuple[str, "subprocess.Popen[str]"]] = []


class SubmitRefusal(StrEnum):
    """The reason why a job was not submitted: `FULL`, a limit of the site; `AWAY`, no answer; `WRONG`, the job itself.

    After `AWAY` the job may be in the queue nevertheless.
    """

    FULL = "full"
    AWAY = "away"
    WRONG = "wrong"


class NotSubmitted(Exception):
    """The scheduler refused the job, or did not answer."""

    def __init__(self, refusal: SubmitRefusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class JobKind:
    """The jobs of a study that a backend submits: those of the simulations, or those of the server.

    `backend` is what runs them. `section` of study.json says what each of them takes, of which `max_queued` may wait in
    the queue. `ranks` is the largest number of ranks of one.
    """

    study: str
    backend: str
    section: str
    resources: JobSettings
    ranks: int
    max_queued: float = math.inf

    @classmethod
    def of_simulations(cls, config: StudyConfig) -> Self:
        """The jobs of the simulations."""
        simulation, most = config.simulation, config.launcher.max_queued
        return cls(
            study=config.study.name,
            backend=config.launcher.backend,
            section="simulation.job",
            resources=simulation.job,
            ranks=simulation.ranks * simulation.per_job,
            max_queued=math.inf if most is None else most,
        )

    @classmethod
    def of_server(cls, config: StudyConfig) -> Self:
        """The jobs of the server, one after another."""
        name, server = config.study.name, config.server
        section, resources = "server.job", server.job
        return cls(study=name, backend=server.backend, section=section, resources=resources, ranks=server.ranks.max)

    @property
    def key(self) -> str:
        """The key that names the scheduler."""
        return "server.backend" if self.section == "server.job" else "launcher.backend"

    def worded(self, text: str) -> str:
        """The errors of a scheduler about `simulation.job`, with the keys that hold for these jobs."""
        of_ranks = text.replace("simulation.ranks", self.section.replace("job", "ranks"))
        return of_ranks.replace("simulation.job", self.section)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchJob:
    """A job to submit: `script` is run once, in bash, on the first node of what `ranks` ranks need."""

    name: str
    folder: Path
    ranks: int
    script: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """A job that the scheduler knows. `was_cancelled` by somebody; of one that has failed `status` need not say how."""

    id: str
    name: str
    status: JobStatus
    was_cancelled: bool = False


class CommandScheduler(ABC):
    """A batch scheduler, which a `BatchBackend` asks in a thread of its own, one question at a time.

    `queue` and `cancel` raise OSError when the command cannot be run, and subprocess.SubprocessError when the scheduler
    does not answer.

    Attributes:
        title: Its name in messages.
        variables: The beginnings of the names of its own environment variables.
        commands: They have to be on the PATH; the first one submits.
        whose_commands: What may be here if that command is; by default the scheduler itself.
        hints: Words of a refusal, each with advice.
        job_variables: Environment variables with the number of the job in which a process is.
        rank_variables: Beginnings of the names of those by which its own starter tells a rank of MPI who it is.
        not_given_out: Keys of a job that it does not know, and why.
        option: What a name in `job.options` looks like.
        no_option: What is found of another name, and what to write instead.
        own_options: Options that the launcher sets, or with which it could not follow the job any more.
        keys: Options for which study.json has keys, and these.

    Raises:
        ConfigError: the settings of the jobs are none of this scheduler, or one of the commands is not here.
    """

    title: str
    variables: tuple[str, ...]
    commands: Sequence[str]
    whose_commands: str = ""
    hints: Sequence[tuple[str, str]] = ()
    job_variables: Sequence[str] = ()
    rank_variables: tuple[str, ...] = ()
    not_given_out: Mapping[str, str] = {}
    option: re.Pattern[str] = re.compile(".+")
    no_option: tuple[str, str] = ("this is no option", "Leave it out")
    own_options: Collection[str] = ()
    keys: Mapping[str, str] = {}

    def __init__(self, kind: JobKind) -> None:
        self.check_settings(kind)
        require(*self.commands, key=kind.key)
        self.kind = kind
        self.resources = kind.resources

    @classmethod
    def check_settings(cls, kind: JobKind) -> None:
        """See whether the settings of these jobs are such as this scheduler has.

        Raises:
            ConfigError: lists all that are not.
        """
        if problems := [*cls.problems(kind)]:
            raise config_error("the study", problems)

    @classmethod
    def problems(cls, kind: JobKind) -> Iterator[Problem]:
        """The settings of these jobs that are not such as this scheduler has."""
        job = kind.resources
        for key, reason in cls.not_given_out.items():
            if value := getattr(job, key):
                found = f"{shown(value)} would be ignored, since {reason}"
                yield Problem(f"{kind.section}.{key}", found, "Leave it out")
        if (job.nodes or 1) > kind.ranks:
            found = f"{job.nodes}, more than the {counted(kind.ranks, 'rank')} of the job, and each node needs one"
            instead = kind.worded(f"Write {kind.ranks} or less, or more in simulation.ranks")
            yield Problem(f"{kind.section}.nodes", found, instead)
        for name, value in job.options.items():
            path = f"{kind.section}.options.{name}"
            if name in cls.keys:
                yield Problem(path, "there is a key for this", f"Write {kind.worded(cls.keys[name])}")
            elif name in cls.own_options:
                found = "the launcher sets this itself, or could not follow the job any more"
                yield Problem(path, found, "Leave it out")
            elif not cls.option.fullmatch(name):
                yield Problem(path, *cls.no_option)
            elif not isinstance(value, str | int | float):
                yield Problem(path, f"{shown(value)} is no value of an option", "Write a text, a number or true")

    def check(self, ranks: int) -> None:
        """See whether it would take jobs of so many ranks, as far as it says so without a submission.

        Raises:
            ConfigError: it would not, and which setting is to be changed.
            NotSubmitted: it would not, or does not answer.
        """
        try:
            self._ask()
        except (OSError, subprocess.SubprocessError) as error:
            raise NotSubmitted(SubmitRefusal.AWAY, str(error)) from error

    @abstractmethod
    def submit(self, job: BatchJob) -> str:
        """Queue a job, which it never starts a second time; returns its id.

        Raises:
            NotSubmitted: it refuses, or does not answer.
        """

    @abstractmethod
    def queue(self) -> list[QueueEntry]:
        """All jobs of this user that it knows, also those that have ended lately if it remembers them."""

    @abstractmethod
    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """End these jobs by TERM and, after the site's grace, KILL, or that `at_once`; skip those that have ended."""

    @classmethod
    def hint(cls, message: str) -> str:
        """Advice for a user whose job was refused, that of the first of `hints` whose words are there; "" without."""
        return next((text for words, text in cls.hints if words in message), "")

    def _ask(self) -> object:
        return self.queue()


def require(*commands: str, key: str = "launcher.backend") -> None:
    """See that the commands of the scheduler are here that `key` of study.json names.

    Raises:
        ConfigError: one is not.
    """
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"{key}: {' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not found on PATH. "
            "Start the study on a login node of the cluster, or load the module that brings the scheduler's commands"
        )


def call(
    command: Sequence[str], input_text: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command of a scheduler.

    Raises:
        OSError: it cannot be run.
        subprocess.SubprocessError: it did not end within a minute.
    """
    _require_all_answered(command[0])
    process = subprocess.Popen(
        command,
        env={**(os.environ if environment is None else environment), "LC_ALL": "C"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # A Ctrl-C is for us.
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(input_text, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        try:
            process.kill()
        except PermissionError:
            _unanswered.append((command[0], process))
        else:
            process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _require_all_answered(command: str) -> None:
    """See that no command of the same scheduler still waits that could not be killed.

    A submission among them comes through in the end: until then, no answer about the queue says that it has not.

    Raises:
        subprocess.SubprocessError: one waits.
    """
    # The commands of one scheduler begin with the same letter, those of two with others.
    for name, process in [it for it in _unanswered if it[0][0] == command[0]]:
        if process.poll() is None:
            raise subprocess.SubprocessError(f"{name} still waits for an answer")
        process.communicate()
        with contextlib.suppress(ValueError):
            # Another thread may have seen it, too.
            _unanswered.remove((name, process))


def answered(
    command: Sequence[str],
    input_text: str = "",
    environment: Mapping[str, str] | None = None,
    *,
    full: Sequence[str],
    away: Sequence[str],
) -> str:
    """The output of a command that submits. `full`, patterns, and `away` are of its refusals and tell their kind.

    Raises:
        NotSubmitted: it says no, or nothing.
    """
    try:
        done = call(command, input_text, environment)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotSubmitted(SubmitRefusal.AWAY, f"{command[0]}: {error}") from error
    if done.returncode == 0:
        return done.stdout
    prefix = f"{command[0]}: "
    message = " ".join(line.removeprefix(prefix).removeprefix("error: ") for line in done.stderr.splitlines())
    message = message or f"{command[0]} ended with {done.returncode}"
    raise NotSubmitted(refusal_of(message, done.returncode, full=full, away=away), message)


def refusal_of(message: str, code: int, *, full: Sequence[str], away: Sequence[str]) -> SubmitRefusal:
    """Tell the kind of a refusal from the words and the exit code of a command; `full` are regular expressions."""
    if any(re.search(pattern, message) for pattern in full):
        return SubmitRefusal.FULL
    # Killed by a signal: what it has done is not known.
    return SubmitRefusal.AWAY if code < 0 or any(words in message for words in away) else SubmitRefusal.WRONG


def listed(command: Sequence[str], *, none_found: str = "") -> str:
    """The output of a command that lists jobs, "" if it failed with the words `none_found`.

    Raises:
        OSError: it cannot be run.
        subprocess.SubprocessError: it failed.
    """
    done = call(command)
    if done.returncode and not (none_found and none_found in done.stderr):
        raise subprocess.CalledProcessError(done.returncode, command[0], stderr=done.stderr)
    return done.stdout


def told_all(command: Sequence[str], ids: Collection[str], *, away: Sequence[str]) -> None:
    """Run a command for these jobs; what it says of jobs that have ended does not matter.

    Raises:
        OSError: it cannot be run.
        subprocess.SubprocessError: it failed with words of `away`.
    """
    ordered = sorted(ids)
    for begin in range(0, len(ordered), MANY):
        done = call([*command, *ordered[begin : begin + MANY]])
        if done.returncode and any(words in done.stderr for words in away):
            raise subprocess.CalledProcessError(done.returncode, command[0], stderr=done.stderr)


def option_words(job: JobSettings, dash: str, named: Mapping[str, object] = MappingProxyType({})) -> list[str]:
    """The words of `simulation.job.options`, for commands whose options have one dash, or two and a sign `=`.

    Before them come the `named` options, but for those that are None.
    """
    words: list[str] = []
    for name, value in (*named.items(), *job.options.items()):
        if value is not None and value is not False:
            option = f"{dash}{name}"
            words += [option] if value is True else [f"{option}={value}"] if dash == "--" else [option, str(value)]
    return words


def out_of_time(limit_s: float | None) -> JobStatus:
    """The status of a job that has reached its time limit."""
    walltime = "" if limit_s is None else f" of {in_words(limit_s)}"
    reason = f"ended after its walltime{walltime} (simulation.job.walltime)"
    return JobStatus(state=JobState.ENDED, reason=reason, is_out_of_time=True)


def parsed(told: str, command: str) -> dict[str, Any]:
    """The object in the JSON of a command, an empty one if it gave nothing.

    Raises:
        subprocess.SubprocessError: it is none.
    """
    try:
        found = json.loads(told) if told.strip() else {}
    except ValueError as error:
        raise subprocess.SubprocessError(f"{command} gave no JSON: {error}") from error
    if not isinstance(found, dict):
        raise subprocess.SubprocessError(f"{command} gave no JSON object, but {told.strip()[:MAX_SHOWN]}")
    return found


def in_words(seconds: float) -> str:
    """A time in words, such as 1 h 30 min."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (s, "s")]
    return " ".join(f"{num} {unit}" for num, unit in parts if num) or "0 s"
