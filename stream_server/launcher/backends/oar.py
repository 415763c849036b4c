"""The scheduler `oar`: each job is a job of OAR, version 2.5 or later.

Why: docs/decisions/0053-other-schedulers.md
"""

import re
import shlex
import time
from collections.abc import Collection, Mapping
from typing import Any

from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.backends.job_script import UNUSUAL
from stream_server.launcher.backends.scheduler import (
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

QUEUED = frozenset({"Waiting", "Hold", "toLaunch", "toAckReservation"})
ENDED = frozenset({"Terminated", "Error"})
ENDING = frozenset({"Finishing", "toError"})
# Jobs that ended longer ago are of no interest, and OAR keeps all of them for ever.
HISTORY_S = 86400
NUMBER = re.compile(r"^OAR_JOB_ID=(\d+)$", re.MULTILINE)
NOT_RUNNING = re.compile(r"Cannot signal (\d+)")
DELETED_BY = re.compile(r"User (\S+) requested to frag")
NOT_ITS_FAULT = {
    "BESTEFFORT_KILL": "was preempted by OAR",
    "PING_CHECKER_NODE_SUSPECTED": "lost its node",
    "EXTERMINATE_JOB": "lost its node",
}
FULL = ("too many jobs", "Too many", "limit of jobs")
TOO_LARGE = "not enough resources"
# Without its database oarstat says so; oarsub and oardel say nothing, and wait (`scheduler.call`).
AWAY = ("DB connection error",)
# OAR's signals reach one process, and oardel kills at once: TERM is passed on to all processes of the job. The last
# wait tells how the command ended, even if that was before the first.
FORWARDING = """\
set -m
/bin/bash -c {script} &
trap "kill -TERM -- -$!" TERM
while kill -0 $! 2>/dev/null; do wait $!; done
wait $!
"""


class Oar(CommandScheduler):
    """OAR, for the jobs of a study; see `CommandScheduler`."""

    title = "OAR"
    variables: tuple[str, ...] = ("OAR",)
    commands = ("oarsub", "oardel", "oarstat")
    job_variables = ("OAR_JOB_ID",)
    hints = (
        ("queue", "Write simulation.job.partition; `oarstat --help` and your site tell the queues"),
        (TOO_LARGE, "No such nodes: lower simulation.job, or choose a queue (simulation.job.partition)"),
        ("Bad resource request", "The site names its resources otherwise: `oarnodes` lists their properties"),
    )
    not_given_out: Mapping[str, str] = dict.fromkeys(("memory", "gpus_per_rank"), "OAR gives out nodes and cores")
    option = re.compile(r"[a-z][a-z-]+")
    no_option = ("this is no long option of oarsub", 'Write its name without dashes, such as "property"')
    own_options = frozenset(
        (
            *("array", "array-param-file", "connect", "directory", "hold", "interactive", "name", "reservation"),
            *("resubmit", "scanscript", "stderr", "stdout"),
        )
    )
    keys: Mapping[str, str] = {
        "project": "simulation.job.account",
        "queue": "simulation.job.partition",
        "resource": "simulation.job.nodes",
    }

    def __init__(self, kind: JobKind) -> None:
        super().__init__(kind)
        self._asked_to_end: set[str] = set()
        self._has_taken_one = False

    def submit(self, job: BatchJob) -> str:
        placing = ["-n", job.name, "-d", str(job.folder), "-O", "/dev/null", "-E", "/dev/null"]
        script = shlex.join(["/bin/bash", "-c", FORWARDING.format(script=shlex.quote(job.script))])
        # A job like those that it took before is too large only while nodes are away.
        full = (*FULL, TOO_LARGE) if self._has_taken_one else FULL
        told = answered(["oarsub", *placing, *resource_words(self.resources, job.ranks), script], full=full, away=AWAY)
        self._has_taken_one = True
        found = NUMBER.search(told)
        return found[1] if found else ""

    def queue(self) -> list[QueueEntry]:
        """Call oarstat, for the jobs of studies of this name."""
        study = UNUSUAL.sub("_", self.kind.study)
        is_of_interest = f"(state NOT IN ('Terminated', 'Error') OR stop_time > {time.time() - HISTORY_S:.0f})"
        return entries_in(listed(["oarstat", "-f", "-J", "--sql", f"job_name LIKE '{study}-%' AND {is_of_interest}"]))

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """Send TERM to those that run, and call oardel, which kills at once, for the others and the next time."""
        polite = set() if at_once else set(ids) - self._asked_to_end
        waiting: set[str] = set()
        if polite:
            self._asked_to_end |= polite
            waiting = set(NOT_RUNNING.findall(call(["oardel", "-s", "TERM", *sorted(polite)]).stderr))
        told_all(["oardel"], (set(ids) - polite) | waiting, away=AWAY)

    def _ask(self) -> object:
        return listed(["oarstat"])


def resource_words(job: JobSettings, ranks: int) -> list[str]:
    """The options of oarsub for a job of `ranks` ranks: so many resources, on as many nodes as are asked for."""
    if job.nodes is None:
        wanted = f"/resource_id={ranks * job.cores_per_rank}"
    else:
        wanted = f"/network_address={job.nodes}/resource_id={-(-ranks // job.nodes) * job.cores_per_rank}"
    if job.walltime is not None:
        wanted += f",walltime={job.walltime}"
    words = ["-l", wanted]
    words += [] if job.partition is None else ["-q", job.partition]
    words += [] if job.account is None else ["--project", job.account]
    return [*words, *option_words(job, "--")]


def entries_in(told: str) -> list[QueueEntry]:
    """The jobs in the JSON of oarstat -f.

    OAR itself submits a job again that could not be started, under the same name: the last of these counts.

    Raises:
        subprocess.SubprocessError: it is none.
    """
    jobs: list[Mapping[str, Any]] = sorted(parsed(told, "oarstat").values(), key=lambda job: int(job["Job_Id"]))
    return [entry_of(job) for job in jobs]


def entry_of(job: Mapping[str, Any]) -> QueueEntry:
    """The entry of a job, from OAR's words."""
    events = {str(event["type"]): str(event["description"]) for event in job.get("events", ())}
    by = DELETED_BY.search(events.get("FRAG_JOB_REQUEST", ""))
    status = status_of(job, events, deleted_by=by[1] if by else "")
    is_its_users = by is not None and by[1] == job.get("owner") and not status.is_out_of_time
    was_cancelled = status.state is JobState.ENDED and is_its_users
    return QueueEntry(id=str(job["Job_Id"]), name=job.get("name") or "", status=status, was_cancelled=was_cancelled)


def status_of(job: Mapping[str, Any], events: Collection[str], *, deleted_by: str) -> JobStatus:
    """The status of a job; `deleted_by` whom, "" if by nobody."""
    state, message = job.get("state", ""), str(job.get("message", ""))
    if state in QUEUED:
        # What it asks for is no reason.
        return JobStatus(state=JobState.QUEUED, reason="" if message.startswith("R=") else message)
    if state not in ENDED:
        return JobStatus(state=JobState.ENDING if state in ENDING else JobState.RUNNING)
    if "WALLTIME" in events:
        return out_of_time(job.get("walltime"))
    excuse = next((told for event, told in NOT_ITS_FAULT.items() if event in events), "")
    if not excuse and deleted_by not in ("", job.get("owner")):
        # OAR does that as root when a node dies, and so may an administrator.
        excuse = "was ended by OAR, as when a node is lost"
    return JobStatus(
        state=JobState.ENDED, exit_code=0 if job.get("exit_code") == 0 else None, reason=excuse, excuse=excuse
    )
