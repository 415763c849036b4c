"""One start of the server: its command line, its mpirun beside the launcher, and how the launcher watches it."""

import contextlib
import logging
import math
import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from stream_server.config import StudyConfig, walltime_s
from stream_server.errors import EXIT_SAVED, ConfigError, RankLost
from stream_server.launcher.backends import ranks_here
from stream_server.launcher.backends.backend import JobState, JobStatus, describe
from stream_server.launcher.backends.local import LocalJob
from stream_server.launcher.backends.mpirun import is_open_mpi, program, server_ranks
from stream_server.launcher.journal.records import ServerStarting
from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.launcher.supervision.server_restart import EndReports, ServerEnd
from stream_server.machine import processes, shared_memory
from stream_server.machine.interpreter import python_command
from stream_server.machine.log_end import log_end
from stream_server.machine.processes import Leader
from stream_server.machine.program import start_folder

MARK = "STREAM_SERVER_JOB"
LOCAL = "local"
LOOK_S = 5.0
LOOK_KILLED_S = 0.05
STOPPED_S = 10.0
# Before its ranks show that they live, a server imports and prepares what may be slow: as long as user code may be.
COMING_LIMIT_S = 1800.0
COMING_TOLD_S = 120.0
LEAVING_LIMIT_S = 600.0
KILL_LIMIT_S = 60.0
# The exit code of an mpirun that refuses to start ranks, and of a Python that cannot import the server.
FAILED = 1
OPEN_MPI_ADVICE = (
    "Open MPI reads what it is to allow from the environment: OMPI_ALLOW_RUN_AS_ROOT=1 with "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 for root, PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe for more ranks "
    "than cores"
)
# The words of an ssh that another try does not change; a node that is away may come back.
REFUSED_BY_SSH = ("Permission denied", "Host key verification failed", "Connection refused", "ssh: not found")
SSH_ADVICE = (
    "mpirun starts ranks on other nodes by ssh where it does not know the scheduler. Let ssh lead from node to node "
    "without a password, or name another starter in server.job.mpirun: under PBS "
    '["mpirun", "-launcher", "rsh", "-launcher-exec", "pbs_tmrsh", "-n", "{ranks}"], or a script around pbsdsh'
)
TRY_MPIRUN = "`stream-study doctor --config` with this study tries mpirun, and tells what stops it"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """The command line of the server, made from that of stream-launcher: the `study` in a `file`, with `overrides`."""

    study: StudyConfig
    file: Path
    overrides: Sequence[str]
    resume: bool
    ranks: int
    retry: Sequence[int] | None = None

    def line(self, *, link: str, alive: str, endpoint: Path | None, time_limit_s: float) -> list[str]:
        """Start the server; it is to leave by itself after `time_limit_s`, if that is not infinite.

        Ranks on other nodes find the launcher by the file `endpoint`. A job leaves before its own time is over, and is
        followed by another one.

        Raises:
            ConfigError: a program is missing.
        """
        is_job, walltime = self._is_job, self.study.server.job.walltime
        if is_job:
            time_limit_s = math.inf if walltime is None else walltime_s(walltime)
        limit = [] if time_limit_s == math.inf else ["--time-limit", clock(time_limit_s)]
        own = ["--followed"] if is_job else ["--link", link, "--alive", alive]
        hidden = [*own, *([] if endpoint is None else ["--launcher-endpoint", str(endpoint)])]
        options = ["--resume"] if self.resume else []
        options += [] if self.retry is None else ["--retry", *map(str, self.retry)]
        return [*self._starter, *self._server, *options, *limit, *hidden]

    def require_room(self) -> None:
        """Ensure that this node has room for what the ranks share, while none of them runs.

        Raises:
            ConfigError: it has not, or mpirun is missing.
        """
        if ranks_here.__name__ in self._starter and (problem := shared_memory.lack(self.ranks)):
            raise ConfigError(f"server.ranks: {problem}")

    def check(self) -> int:
        """Let the server tell what the study would do; returns its exit code.

        Raises:
            ConfigError: the program is missing, or this node has no room for what the ranks share.
        """
        self.require_room()
        return subprocess.run([*self._server, "--check"], cwd=start_folder()).returncode

    @property
    def _is_job(self) -> bool:
        return self.study.server.backend != LOCAL

    @property
    def _starter(self) -> list[str]:
        return server_ranks(self.ranks, self.study.server.job.mpirun, is_job=self._is_job)

    @property
    def _server(self) -> list[str]:
        overrides = [f"--set={override}" for override in self.overrides]
        # With our own interpreter: that of the script's first line may belong to another environment, with another MPI.
        return python_command(program("stream-server"), "--config", str(self.file), *overrides)


class ServerJob(ABC):
    """One start of the server, as its launcher follows it. Main thread only.

    `look` moves things on: call it at each SIGCHLD, and at `wake_at` at the latest. Once it `is_over`, `end` tells how
    it ended, in words that follow the `title`. `ranks` are those that told who they are. `leader` is its first process,
    if that runs here, and `log` the file that it prints into, if that is not our terminal.
    `is_followed`: another one goes on where it has saved. `is_cancelled`: it may have been ended before it could save.
    """

    title = "the server"
    is_followed = False
    is_cancelled = False
    leader: Leader | None = None
    log: Path | None = None

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.end: JobStatus | None = None
        self.ranks: Mapping[int, Leader] = {}
        self.wake_at = 0.0

    @property
    def is_over(self) -> bool:
        return self.end is not None

    @abstractmethod
    def ask_to_leave(self) -> None:
        """Ask it to leave before it listens on the link."""

    @abstractmethod
    def kill(self, now: float) -> None:
        """KILL everything of it; `is_over` once nothing is left."""

    @abstractmethod
    def look(self, now: float) -> None:
        """See what is left of it."""

    def abandon(self) -> None:  # noqa: B027
        """Stop waiting for the end of a killed server, if the next may begin beside its remains."""

    def stopped_pid(self, now: float) -> int | None:
        """A process of it that a signal has stopped for too long, if one can be seen from here."""
        return None


class LocalServer(ServerJob):
    """The server beside us. All of its processes have `mark` in their environment; `leader` leads a session."""

    def __init__(self, mark: str, leader: Leader | None, process: "subprocess.Popen[bytes] | None" = None) -> None:
        super().__init__(JobState.RUNNING)
        self.leader = leader
        self._job = LocalJob(folder=Path(mark), marks=frozenset({mark}), leader=leader, process=process)
        self._is_killed = False
        self._stopped_since: dict[int, float] = {}

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], mark: str) -> Self:
        """Start it in a session of its own, so that a Ctrl-C reaches it by us only.

        A batch system may signal all processes of a job: MPICH's mpirun would end by what its ranks save upon.
        """
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'trap "" HUP USR2 XCPU; exec "$@"', "sh", *command],
            env={**environment, MARK: mark},
            # It shows paths from there, and works in the folder of the study, as we do.
            cwd=start_folder(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        leader = None
        with contextlib.suppress(OSError):
            leader = Leader.of(process.pid)
        return cls(mark, leader, process)

    @classmethod
    def adopt(cls, mark: str, leader: Leader | None) -> Self | None:
        """The server that another launcher started; None when nothing of it runs any more."""
        members = [process for process in processes.running(MARK) if process.mark == mark]
        firsts = sorted((member.started, member.pid) for member in members if member.pid == member.session)
        if leader is None and firsts:
            leader = Leader(pid=firsts[0][1], started=firsts[0][0])
        return cls(mark, leader) if members or (leader is not None and leader.alive) else None

    def ask_to_leave(self) -> None:
        """Signal its first process, which passes that on to all ranks."""
        with contextlib.suppress(OSError):
            if self.leader is not None and self.leader.alive:
                # Open MPI would kill the ranks 0.26 s after a TERM.
                os.kill(self.leader.pid, signal.SIGUSR1)

    def kill(self, now: float) -> None:
        self._is_killed = True
        self.look(now)

    def look(self, now: float) -> None:
        """Look at what is left of it, and kill what outlives its first process."""
        try:
            self._look(now)
        except OSError as error:
            log.warning("nothing is known of the server's processes: %s", error)
            self.wake_at = now + LOOK_S

    def _look(self, now: float) -> None:
        is_first_over = self._job.is_first_over
        ending = self._is_killed or is_first_over
        if self.is_over or (now < self.wake_at and not ending):
            return
        running = processes.running(MARK)
        ranks = {(rank.pid, rank.started) for rank in self.ranks.values()}
        members = self._job.members(running) | {each.pid for each in running if (each.pid, each.started) in ranks}
        stopped = {process.pid for process in running if process.stopped and process.pid in members}
        self._stopped_since = {pid: self._stopped_since.get(pid, now) for pid in stopped}
        if ending:
            self._job.kill(members)
        if is_first_over and not members:
            shared_memory.remove(self._job.shared)
            self.end = self._how_it_ended()
        self.wake_at = now + (LOOK_KILLED_S if ending else LOOK_S)

    def stopped_pid(self, now: float) -> int | None:
        return next((pid for pid, since in self._stopped_since.items() if now >= since + STOPPED_S), None)

    def _how_it_ended(self) -> JobStatus:
        status = None if self._job.process is None else self._job.process.poll()
        if status is None:
            return JobStatus(state=JobState.ENDED, reason="has ended")
        code = status if status >= 0 else 128 - status
        return JobStatus(state=JobState.ENDED, exit_code=code, reason=describe(code))


class RunningServer:
    """Its processes, its ranks' signs of life, and what it said. Main thread only.

    `stack` is left by `close`. `was_planned`: it has said which simulations it needs; `leaving_since`: that it leaves.
    `coming_since` is when it was started, infinity when another launcher did that; the time in a queue does not count.
    One that was `taken_over` while it ran should have all of its ranks.
    """

    def __init__(
        self,
        starting: ServerStarting,
        job: ServerJob,
        liveness: LivenessSocket,
        stack: ExitStack,
        *,
        taken_over: bool = False,
    ) -> None:
        self.starting = starting
        self.job = job
        self.liveness = liveness
        self.was_planned = False
        self.was_asked_to_leave = False
        self.coming_since = math.inf
        self.leaving_since = math.inf
        self._stack = stack
        self._killed_at = math.inf
        self._why_killed = ""
        self._has_all = taken_over
        self._is_coming_told = False
        job.ranks = liveness.processes

    @property
    def wake_at(self) -> float:
        """The time of the next `look`."""
        return min(self.job.wake_at, self.liveness.wake_at)

    def look(self, now: float) -> str:
        """See how it is; returns why it must be killed, "" while it need not."""
        self.liveness.take(now)
        self.job.look(now)
        if now >= self._killed_at + KILL_LIMIT_S:
            self.job.abandon()
        if self._killed_at < math.inf or self.job.is_over or self.job.state is JobState.UNKNOWN:
            return ""
        if self.job.state is JobState.QUEUED:
            self._has_all, self.coming_since = False, now
            return ""
        if self._has_all:
            self._has_all = False
            self.liveness.ranks.expect_all()
        if lost := self.liveness.ranks.lost:
            return f"{_ranks(lost)} of the server does not answer any more"
        if (pid := self.job.stopped_pid(now)) is not None:
            return f"process {pid} of the server was stopped by a signal, and not continued"
        if self.liveness.has_all_ranks:
            self.coming_since = math.inf
        if now >= self.coming_since + COMING_LIMIT_S:
            return f"not all ranks of the server have come within {COMING_LIMIT_S:g} s. {TRY_MPIRUN}"
        if now >= self.coming_since + COMING_TOLD_S and not self._is_coming_told:
            self._is_coming_told = True
            log.warning("not all ranks of the server have come for %g s. %s", COMING_TOLD_S, TRY_MPIRUN)
        if now >= self.leaving_since + LEAVING_LIMIT_S:
            return f"the server said that it leaves, and did not within {LEAVING_LIMIT_S:g} s"
        return ""

    def kill(self, why: str, now: float) -> None:
        """KILL all of it; `job.is_over` once nothing is left."""
        self._why_killed = self._why_killed or why
        self._killed_at = min(self._killed_at, now)
        self.job.kill(now)

    def cannot_be_killed(self, now: float) -> bool:
        """Something of it is still there, long after it was killed."""
        return not self.job.is_over and now >= self._killed_at + KILL_LIMIT_S

    def how_it_ended(self, output_dir: Path) -> ServerEnd:
        """Tell how it ended: as it said itself, or else why we killed it."""
        job = self.job
        assert job.end is not None
        end = EndReports(output_dir, self.starting.reports_before).read(
            None if self._why_killed else job.end.exit_code,
            was_planned=self.was_planned,
            has_left=self.leaving_since < math.inf,
            how=f"{job.title} {job.end.reason}",
        )
        is_lost = end.exit_code == RankLost.exit_code
        if is_lost and self._why_killed:
            end = replace(end, message=self._why_killed)
        elif is_lost and self._was_refused:
            end = replace(end, why_refused=_why_refused(self.starting.ranks))
        end = replace(end, has_begun=self.liveness.remote is None or self.liveness.has_all_ranks)
        if is_lost and job.log and job.end.exit_code and not self.liveness.ranks.known:
            end = _with_last_words(end, log_end(job.log))
        if is_lost and job.is_cancelled and not self.was_planned:
            return replace(end, exit_code=EXIT_SAVED, message=f"{job.title} was cancelled before it had begun")
        is_cut_off = is_lost and (bool(job.end.excuse) or job.end.is_out_of_time)
        return replace(end, is_of_job=is_cut_off or (job.is_followed and end.exit_code == EXIT_SAVED))

    @property
    def _was_refused(self) -> bool:
        """Whether it ended by itself before any of its ranks came to life; other nodes may have been away."""
        assert self.job.end is not None
        return self.job.end.exit_code == FAILED and not self.liveness.ranks.known and self.liveness.remote is None

    def close(self) -> None:
        """Listen to its ranks no more."""
        self._stack.close()


def clock(seconds: float) -> str:
    """A duration as HH:MM:SS, rounded down to whole seconds, of which there is at least one."""
    minutes, s = divmod(max(1, int(seconds)), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{s:02d}"


def _with_last_words(end: ServerEnd, words: str) -> ServerEnd:
    """The end of a job none of whose ranks came to life, with the last of the `words` that it printed."""
    last = words.splitlines()[-1:]
    end = replace(end, message="; its last words: ".join([end.message, *last]))
    is_refused = any(refusal in words for refusal in REFUSED_BY_SSH)
    return replace(end, why_refused=f"{end.message}. {SSH_ADVICE}") if is_refused else end


def _ranks(numbers: Set[int]) -> str:
    return "rank " + ", rank ".join(map(str, sorted(numbers)))


def _why_refused(ranks: int) -> str:
    command = server_ranks(ranks)
    if not command:
        return "the server could not be started; what it wrote above tells why"
    advice = f". {OPEN_MPI_ADVICE}" if is_open_mpi(command[0], os.environ) else ""
    return f"{shlex.join(command)} started no rank of the server; what it wrote above tells why{advice}"
