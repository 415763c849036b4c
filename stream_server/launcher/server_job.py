"""The server as a job of the launcher: mpirun, its ranks, and what else it started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from stream_server.launcher import processes, shared_memory
from stream_server.launcher.processes import Leader, Process

MARK = "STREAM_SERVER_JOB"
LOOK_S = 5.0
LOOK_KILLED_S = 0.05
STOPPED_S = 10.0


class ServerJob:
    """One start of the server. Main thread only.

    All of its processes have `mark` in their environment; `leader`, the first of them, leads a session. `look` moves
    things on: call it at each SIGCHLD, and at `wake_at` at the latest.
    """

    def __init__(self, mark: str, leader: Leader | None, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.mark = mark
        self.leader = leader
        self.status: int | None = None
        self.is_over = False
        self.killed = False
        self.wake_at = 0.0
        self._process = process
        self._registered: Callable[[], Sequence[Leader]] = tuple
        self._stopped_since: dict[int, float] = {}
        self._shared: set[str] = set()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], mark: str) -> Self:
        """Start it in a session of its own, so that a Ctrl-C reaches it by us only."""
        process = subprocess.Popen(
            command, env={**environment, MARK: mark}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return cls(mark, Leader.of(process.pid), process)

    @classmethod
    def adopt(cls, mark: str, leader: Leader | None) -> Self | None:
        """The server that another launcher started; None when nothing of it runs any more."""
        members = [it for it in processes.running(MARK) if it.mark == mark]
        firsts = sorted((it.started, it.pid) for it in members if it.pid == it.session)
        if leader is None and firsts:
            leader = Leader(pid=firsts[0][1], started=firsts[0][0])
        return cls(mark, leader) if members or (leader is not None and leader.alive) else None

    def also_kill(self, registered: Callable[[], Sequence[Leader]]) -> None:
        """These belong to it as well, such as ranks that have told us who they are."""
        self._registered = registered

    def send_signal(self, number: signal.Signals) -> None:
        """Signal its first process, which passes it on to all ranks."""
        if self.leader is not None and self.leader.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.leader.pid, number)

    def kill(self, now: float) -> None:
        """KILL everything of it; `is_over` once nothing is left."""
        self.killed = True
        self.look(now)

    def look(self, now: float) -> None:
        """See what is left of it. What outlives its first process is killed."""
        first_is_over = self._first_is_over()
        ending = self.killed or first_is_over
        if self.is_over or (now < self.wake_at and not ending):
            return
        running = processes.running(MARK)
        members = self._members(running)
        self._note_stopped(running, members, now)
        if ending:
            # Ranks that are killed before they have met do not take away what they share.
            self._shared = self._shared.union(*map(shared_memory.names_of, members))
            processes.send(members, signal.SIGKILL)
            self.is_over = not members and first_is_over
            if self.is_over:
                shared_memory.remove(self._shared)
        self.wake_at = now + (LOOK_KILLED_S if ending else LOOK_S)

    def stopped_pid(self, now: float) -> int | None:
        """A process of it that a signal has held for too long, if there is one."""
        return next((pid for pid, since in self._stopped_since.items() if now >= since + STOPPED_S), None)

    def _first_is_over(self) -> bool:
        if self._process is not None:
            self.status = self._process.poll()
            return self.status is not None
        return self.leader is None or not self.leader.alive

    def _members(self, running: Sequence[Process]) -> set[int]:
        registered = {(leader.pid, leader.started) for leader in self._registered()}
        named = {it.pid for it in running if (it.pid, it.started) in registered}
        return named | processes.members(running, self.leader, {self.mark})

    def _note_stopped(self, running: Sequence[Process], members: set[int], now: float) -> None:
        stopped = {it.pid for it in running if it.stopped and it.pid in members}
        self._stopped_since = {pid: self._stopped_since.get(pid, now) for pid in stopped}
