"""One start of the server, with all that the launcher knows of it."""

import math
from contextlib import ExitStack
from pathlib import Path

from stream_server.errors import RankLost
from stream_server.launcher.last_words import LastWords
from stream_server.launcher.liveness import Liveness
from stream_server.launcher.records import ServerStarting
from stream_server.launcher.restarts import ServerEnd
from stream_server.launcher.server_job import ServerJob

# Before its ranks show that they live, a server imports and prepares what may be slow: as long as user code may be.
COMING_LIMIT_S = 1800.0
LEAVING_LIMIT_S = 600.0
KILL_LIMIT_S = 60.0


class RunningServer:
    """Its processes, its ranks' signs of life, and what it said. Main thread only.

    `stack` is left by `close`. `was_planned`: it has said which simulations it needs; `leaving_since`: that it leaves.
    `coming_since` is when it was started, infinity when another launcher did that.
    """

    def __init__(self, starting: ServerStarting, job: ServerJob, liveness: Liveness, stack: ExitStack) -> None:
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
        job.also_kill(lambda: list(liveness.processes.values()))

    @property
    def wake_at(self) -> float:
        """When the next `look` is due."""
        return min(self.job.wake_at, self.liveness.wake_at)

    def look(self, now: float) -> str:
        """See how it is; returns why it must be killed, "" while it need not."""
        self.liveness.take(now)
        self.job.look(now)
        if self.job.killed or self.job.is_over:
            return ""
        if self.liveness.is_lost(now):
            return "a rank of the server does not answer any more"
        if (pid := self.job.stopped_pid(now)) is not None:
            return f"process {pid} of the server was stopped by a signal, and not continued"
        if self.liveness.has_all_ranks:
            self.coming_since = math.inf
        if now >= self.coming_since + COMING_LIMIT_S:
            return f"not all ranks of the server have come within {COMING_LIMIT_S:g} s"
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
        """What it said itself, or else why we killed it."""
        words = LastWords(output_dir, self.starting.words_before)
        end = words.read(None if self._why_killed else self.job.status, was_planned=self.was_planned)
        if self._why_killed and end.exit_code == RankLost.exit_code:
            return ServerEnd(exit_code=end.exit_code, message=self._why_killed)
        return end

    def close(self) -> None:
        """Listen to its ranks no more."""
        self._stack.close()
