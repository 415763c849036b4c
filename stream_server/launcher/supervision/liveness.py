"""The liveness of the server's ranks: the launcher's second door to ZeroMQ.

Each rank keeps one connection open. Heartbeats on it are answered by libzmq's own thread in the rank, whatever Python
does there, so neither a full buffer nor user code that holds the interpreter for minutes looks like death; a rank that
is stopped, or whose node is gone, does.
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq

from stream_server.machine.processes import Leader


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatSettings:
    """A rank is asked every `interval_s`, and has `answer_s` to answer; then its connection is cut.

    It is lost when it has not come back after `return_s`: a rank that lives connects again within 0.1 s.
    """

    interval_s: float = 2.0
    answer_s: float = 8.0
    return_s: float = 3.0


class Presence:
    """Counts connections against ranks. Pure; ranks that left in order are not missed.

    After a takeover the ranks do not announce themselves again, so that one connection of each is expected from
    `all_at` on.
    """

    def __init__(self, num_ranks: int, *, all_at: float = math.inf) -> None:
        self.num_ranks = num_ranks
        self.all_at = all_at
        self.open: set[int] = set()
        self.known: set[int] = set()
        self.left: set[int] = set()
        self._most = 0
        self._missed_since = math.inf

    def opened(self, connection: int) -> None:
        self.open.add(connection)
        self._most = max(self._most, len(self.open))

    def closed(self, connection: int) -> None:
        self.open.discard(connection)

    def come(self, rank: int) -> None:
        self.known.add(rank)

    def leave(self, rank: int) -> None:
        self.left.add(rank)

    def num_missed(self, now: float) -> int:
        """Number of ranks that should be connected and are not."""
        expected = self.num_ranks if now >= self.all_at else max(len(self.known), min(self._most, self.num_ranks))
        return max(0, expected - len(self.left) - len(self.open))

    def missed_since(self, now: float) -> float:
        """Since when some rank is missed, infinity when none is."""
        self._missed_since = min(self._missed_since, now) if self.num_missed(now) else math.inf
        return self._missed_since


class Liveness:
    """The launcher's end of the ranks' connections. Main thread only.

    `sockets` become readable when there is something to `take`. `all_at`: when all ranks must have come.
    """

    def __init__(
        self, address: str, *, num_ranks: int, all_at: float = math.inf, heartbeat: HeartbeatSettings | None = None
    ) -> None:
        self.address = address
        self.heartbeat = heartbeat or HeartbeatSettings()
        self.presence = Presence(num_ranks, all_at=all_at)
        self.processes: dict[int, Leader] = {}
        self._lost_at = math.inf
        self._wake_at = self.presence.all_at

    def __enter__(self) -> Self:
        # It imports asyncio: a tenth of the start of every launcher, most of which have no server to watch.
        from zmq.utils.monitor import recv_monitor_message

        self._receive_event = recv_monitor_message
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.heartbeat_ivl = round(self.heartbeat.interval_s * 1000)
        # A rank may be stopped before it is through with the handshake, after which the heartbeats begin.
        self._socket.handshake_ivl = self._socket.heartbeat_timeout = round(self.heartbeat.answer_s * 1000)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._socket.bind(self.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._context.term()

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        return self._socket, self._monitor

    @property
    def wake_at(self) -> float:
        """The time at which a rank that is missed now will be lost, or all must have come."""
        return self._wake_at

    def take(self, now: float) -> None:
        """Take note of all that has come."""
        while self._socket.poll(0):
            self._hear(self._socket.recv_multipart()[-1])
        while self._monitor.poll(0):
            event = self._receive_event(self._monitor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self.presence.opened(int(event["value"]))
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self.presence.closed(int(event["value"]))
        self._lost_at = self.presence.missed_since(now) + self.heartbeat.return_s
        all_at = self.presence.all_at
        self._wake_at = min(self._lost_at, all_at) if now < all_at else self._lost_at

    @property
    def has_all_ranks(self) -> bool:
        """Every rank has said who it is."""
        return len(self.presence.known) >= self.presence.num_ranks

    def is_lost(self, now: float) -> bool:
        """Some rank does not answer any more, and did not say that it leaves."""
        return now >= self._lost_at

    def _hear(self, frame: bytes) -> None:
        """Take a message of a rank; others are ignored, since the folder of the socket is ours alone."""
        try:
            said = json.loads(frame)
            rank = int(said["rank"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return
        if said.get("leaving"):
            self.presence.leave(rank)
        elif isinstance(pid := said.get("pid"), int):
            self.presence.come(rank)
            with suppress(OSError):
                if (leader := Leader.of(pid)) is not None:
                    self.processes[rank] = leader
