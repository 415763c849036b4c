"""The scheduler `pbs`: each job is a job of PBS Professional or OpenPBS.

Why: docs/decisions/0053-other-schedulers.md
"""

import os
import pwd
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from stream_server.config import walltime_s
from stream_server.config.job_sections import JobSettings
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.backends.scheduler import (
    MANY,
    MIB,
    BatchJob,
    CommandScheduler,
    JobKind,
    NotSubmitted,
    QueueEntry,
    answered,
    call,
    listed,
    option_words,
    out_of_time,
    told_all,
)

QUEUED = frozenset("HQTW")
ENDED = frozenset("FX")
# Exit_status of a job that PBS itself has ended.
OVER_MEMORY = frozenset({-26, -27})
OUT_OF_TIME = -29
# The node was restarted (-4, -5, -6), or is not reached any more, and the job may not be started a second time.
NODE_LOST = frozenset({-4, -5, -6, -11, -14, -20})
# The substate of a job that qdel has ended.
DELETED = "91"
NO_HISTORY = "job history"
UNKNOWN_JOB = "Unknown Job Id"
JOB_LINE = "Job Id: "
FULL = ("would exceed",)
AWAY = (
    *("cannot connect to server", "Connection refused", "Connection timed out", "Communication failure"),
    *("Server shutting down", "pbs_iff", "End of File", "Premature end of message", "Request timed out"),
)


class Pbs(CommandScheduler):
    """PBS, for the jobs of a study; see `CommandScheduler`."""

    title = "PBS"
    variables: tuple[str, ...] = ("PBS_",)
    commands = ("qsub", "qdel", "qsig", "qstat", "qselect")
    whose_commands = "PBS or Grid Engine"
    job_variables = ("PBS_JOBID", "JOB_ID")
    hints = (
        ("nknown queue", "Write simulation.job.partition; `qstat -Q` lists the queues"),
        ("nvalid account", "Write simulation.job.account"),
        ("resource limits", "Lower simulation.job, or choose another queue (simulation.job.partition)"),
        ("cannot access queue", "Choose another queue (simulation.job.partition)"),
    )
    option = re.compile(r"[A-Za-z]")
    no_option = ("this is no option of qsub", 'Write its letter without a dash, such as "W"')
    own_options = frozenset("CINJSVXefhjkortvz")
    keys: Mapping[str, str] = {"A": "simulation.job.account", "q": "simulation.job.partition"}

    def __init__(self, kind: JobKind) -> None:
        super().__init__(kind)
        try:
            self._user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError as error:
            raise ConfigError(
                f"{kind.key}: user {os.getuid()} has no name on this machine, by which PBS could list the jobs. Try "
                "again when `id -un` prints one"
            ) from error
        self._has_history = True
        self._looks_back = True
        self._names: dict[str, str] = {}
        self._ended: dict[str, QueueEntry] = {}

    def submit(self, job: BatchJob) -> str:
        """Call qsub, which gives the job nothing of our environment."""
        placing = ["-N", job.name, "-j", "oe", "-o", "/dev/null", "-r", "n"]
        command = ["qsub", *placing, *resource_words(self.resources, job.ranks)]
        try:
            id_ = answered(command, job.script, full=FULL, away=AWAY).strip()
        except NotSubmitted:
            # It may have come through, and have ended before the next look.
            self._looks_back = True
            raise
        self._names[id_] = job.name
        return id_

    def queue(self) -> list[QueueEntry]:
        """Call qselect, and qstat for all that have not been seen to have ended.

        Only the first look, and those after a submission that failed, go through the history of the site. A job that
        qstat leaves out, without calling it unknown, is in an unknown state.
        """
        selected = self._selected()
        ids = [id_ for id_ in dict.fromkeys([*selected, *self._names]) if id_ not in self._ended]
        found: dict[str, QueueEntry] = {}
        for begin in range(0, len(ids), MANY):
            found |= self._told(ids[begin : begin + MANY])
        for id_ in ids:
            if id_ not in found:
                found |= self._told([id_])
        for id_, entry in found.items():
            self._names[id_] = entry.name
            if entry.status.state is JobState.ENDED:
                self._ended[id_] = entry
        self._names = {id_: name for id_, name in self._names.items() if id_ in found and id_ not in self._ended}
        self._looks_back = False
        return [*self._ended.values(), *(entry for id_, entry in found.items() if id_ not in self._ended)]

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        if at_once:
            told_all(["qsig", "-s", "SIGKILL"], ids, away=AWAY)
        told_all(["qdel"], ids, away=AWAY)

    def _ask(self) -> object:
        return listed(["qselect", "-u", self._user])

    def _selected(self) -> list[str]:
        """The jobs of this user; those that have ended, too, if we look back and the site keeps them."""
        command = ["qselect", "-u", self._user]
        if self._looks_back and self._has_history:
            done = call([*command, "-x"])
            if done.returncode == 0:
                return done.stdout.split()
            self._has_history = NO_HISTORY not in done.stderr
        return listed(command).split()

    def _told(self, ids: Sequence[str]) -> dict[str, QueueEntry]:
        """States of these jobs, from qstat; a single job that it leaves out is unknown."""
        # Not as JSON, which is broken by many a value in the environment of a job, or has the first job only.
        command = ["qstat", *(["-x"] if self._has_history else []), "-f", *ids]
        done = call(command)
        if done.returncode and UNKNOWN_JOB not in done.stderr:
            raise subprocess.CalledProcessError(done.returncode, command[0], stderr=done.stderr)
        found = {entry.id: entry for entry in entries_in(done.stdout)}
        if len(ids) == 1 and not found and UNKNOWN_JOB not in done.stderr and ids[0] in self._names:
            unknown = JobStatus(state=JobState.UNKNOWN)
            found[ids[0]] = QueueEntry(id=ids[0], name=self._names[ids[0]], status=unknown)
        return found


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
    walltime = job.walltime and f"walltime={job.walltime}"
    return [*words, *option_words(job, "-", {"l": walltime, "q": job.partition, "A": job.account})]


def entries_in(told: str) -> list[QueueEntry]:
    """The jobs in what qstat -f prints."""
    # A line that is too long goes on in the next one, behind a tab.
    lines = told.replace("\n\t", "").splitlines()
    jobs: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(" = ")
        if line.startswith(JOB_LINE):
            attributes = jobs.setdefault(line.removeprefix(JOB_LINE).strip(), {})
        else:
            # Line ends in the environment of a job make lines that look like attributes.
            attributes.setdefault(name.strip(), value)
    return [entry_of(id_, job) for id_, job in jobs.items() if "Job_Name" in job]


def entry_of(id_: str, job: Mapping[str, str]) -> QueueEntry:
    """The entry of a job, from its attributes."""
    status = status_of(job)
    was_deleted = status.state is JobState.ENDED and job.get("substate") == DELETED
    return QueueEntry(id=id_, name=job["Job_Name"], status=status, was_cancelled=was_deleted)


def status_of(job: Mapping[str, str]) -> JobStatus:
    """The status of a job, from PBS's words."""
    state, code = job.get("job_state", ""), _code(job.get("Exit_status", ""))
    if state in QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=job.get("comment", "").removeprefix("Not Running: "))
    if state not in ENDED:
        return JobStatus(state=JobState.ENDING if state == "E" else JobState.RUNNING)
    if code == OUT_OF_TIME:
        try:
            limit_s = walltime_s(job.get("Resource_List.walltime", ""))
        except ValueError:
            limit_s = None
        return out_of_time(limit_s)
    if code in OVER_MEMORY:
        return JobStatus(state=JobState.ENDED, reason="took more memory than PBS gave it (simulation.job.memory)")
    if code in NODE_LOST:
        return JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node")
    return JobStatus(state=JobState.ENDED, exit_code=0 if code == 0 else None)


def _code(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None
