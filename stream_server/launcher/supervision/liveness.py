"""The liveness of the server's ranks: the launcher's second door to ZeroMQ.

Each rank keeps one connection open, over ipc or, from another node, over TCP. What the launcher asks there is echoed by
libzmq in the rank, whatever Python does, so neither a full buffer nor user code that holds the interpreter for minutes
looks like death; a rank that is stopped, or whose node is gone, does.

Why: docs/decisions/0057-echoes.md
"""

import errno
import json
import math
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import zmq

from stream_server.launcher.simulations.remote_access import RankRouter, RemoteAccess
from stream_server.machine.processes import Leader
from stream_server.messages.launcher_link import rank_name, rank_of

QUESTION = b""
# Of what a rank says, and of a handshake: on TCP strangers may come, too.
MAX_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LivenessSettings:
    """A rank is asked every `interval_s`. It is lost when it has not answered for `silent_s`.

    One whose connection has broken is lost after `return_s`: a rank that lives connects again within 0.1 s.
    """

    interval_s: float = 2.0
    silent_s: float = 11.0
    return_s: float = 3.0


class RankLiveness:
    """The ranks that answer. Pure; ranks that left in order are not missed.

    Expected is every rank that was heard of; after `expect_all` every rank that there is. Its clock is wound by `tick`,
    by `interval_s` at most: time for which the launcher was stopped or busy is not held against ranks.
    """

    def __init__(self, num_ranks: int, heartbeat: LivenessSettings) -> None:
        self.num_ranks = num_ranks
        self.heartbeat = heartbeat
        self.known: set[int] = set()
        self.left: set[int] = set()
        self._now = 0.0
        self._ticked_at = math.inf
        self._heard_at: dict[int, float] = {}
        self._broken_since: dict[int, float] = {}

    @property
    def expected(self) -> Set[int]:
        """The ranks that should answer."""
        return self._heard_at.keys() - self.left

    @property
    def lost(self) -> Set[int]:
        """The ranks that should answer and have not for too long."""
        settings, never = self.heartbeat, math.inf
        return {
            rank
            for rank in self.expected
            if self._now - self._heard_at[rank] >= settings.silent_s
            or self._now - self._broken_since.get(rank, never) >= settings.return_s
        }

    def expect_all(self) -> None:
        """Every rank should answer from now on, as those do of a server that is taken over while it runs."""
        for rank in range(self.num_ranks):
            self._heard_at.setdefault(rank, self._now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._now += min(max(0.0, now - self._ticked_at), self.heartbeat.interval_s)
        self._ticked_at = now

    def heard(self, rank: int) -> None:
        """A rank has said something."""
        if rank < self.num_ranks:
            self.known.add(rank)
            self._heard_at[rank] = self._now
            self._broken_since.pop(rank, None)

    def is_broken(self, rank: int) -> None:
        self._broken_since.setdefault(rank, self._now)

    def leave(self, rank: int) -> None:
        self.left.add(rank)


class LivenessSocket(RankRouter):
    """The launcher's end of the ranks' connections. Main thread only.

    There is something to `take` when one of the `sockets` is readable, and at `wake_at` at the latest.
    """

    name = "alive"
    # A rank that reconnects takes over its name from the connection that it has lost.
    options: ClassVar = {
        zmq.LINGER: 0,
        zmq.MAXMSGSIZE: MAX_BYTES,
        zmq.ROUTER_HANDOVER: 1,
        zmq.ROUTER_MANDATORY: 1,
    }

    def __init__(
        self,
        address: str,
        *,
        num_ranks: int,
        heartbeat: LivenessSettings | None = None,
        remote: RemoteAccess | None = None,
        before: str | None = None,
    ) -> None:
        super().__init__(address, remote, before)
        self.heartbeat = heartbeat or LivenessSettings()
        self.ranks = RankLiveness(num_ranks, self.heartbeat)
        self.processes: dict[int, Leader] = {}
        self.wake_at = 0.0

    def take(self, now: float) -> None:
        """Note all that has come, and ask again when it is time."""
        self._receive()
        self.ranks.tick(now)
        if now >= self.wake_at:
            self.wake_at = now + self.heartbeat.interval_s
            self._ask()

    @property
    def has_all_ranks(self) -> bool:
        """Every rank has said who it is."""
        return len(self.ranks.known) >= self.ranks.num_ranks

    def _receive(self) -> None:
        for name, frame, *_ in ([*frames, b""] for frames in self.messages()):
            rank = rank_of(name)
            if rank is not None and rank < self.ranks.num_ranks:
                self.ranks.heard(rank)
                self._hear(rank, frame)

    def _ask(self) -> None:
        for rank in self.ranks.expected:
            try:
                self._socket.send_multipart([rank_name(rank), QUESTION], zmq.NOBLOCK)
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                self.ranks.is_broken(rank)

    def _hear(self, rank: int, frame: bytes) -> None:
        """Take the words of a rank; most are echoes."""
        try:
            message = json.loads(frame)
            is_leaving, pid = message.get("leaving"), message.get("pid")
        except (ValueError, AttributeError, RecursionError):
            return
        if is_leaving:
            self.ranks.leave(rank)
        elif type(pid) is int:
            with suppress(OSError):
                if (leader := Leader.of(pid)) is not None:
                    self.processes[rank] = leader
