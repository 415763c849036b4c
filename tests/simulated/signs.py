"""The ranks' signs of life, as the launcher sees them, without sockets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stream_server.launcher.supervision.liveness import Liveness
from stream_server.machine.processes import Leader
from tests.simulated.machine import Program

if TYPE_CHECKING:
    from tests.simulated.world import World


@dataclass(slots=True)
class Sign:
    """A rank's connection; `since` when it was made."""

    rank: int
    program: Program
    since: float
    has_left: bool = False


class Signs:
    """The connections to each address."""

    def __init__(self) -> None:
        self._at: dict[str, list[Sign]] = {}

    def come(self, address: str, rank: int, program: Program, now: float) -> None:
        self._at.setdefault(address, []).append(Sign(rank, program, now))

    def leave(self, address: str, rank: int) -> None:
        for sign in self._at.get(address, []):
            sign.has_left |= sign.rank == rank

    def at(self, address: str) -> list[Sign]:
        return self._at.get(address, [])


class SimulatedLiveness(Liveness):
    """The real one's judgement of connections that break when their rank dies, or is stopped for too long."""

    world: "World"

    def __enter__(self) -> Self:
        self._entered_at = self.world.threads.now
        self._stopped_since: dict[int, float] = {}
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def sockets(self) -> tuple[()]:
        return ()

    def take(self, now: float) -> None:
        for sign in self.world.signs.at(self.address):
            self._look_at(sign, now)
        self._lost_at = self.presence.missed_since(now) + self.heartbeat.return_s
        all_at = self.presence.all_at
        self._wake_at = min(self._lost_at, all_at) if now < all_at else self._lost_at

    def _look_at(self, sign: Sign, now: float) -> None:
        pid = sign.program.pid
        if sign.since >= self._entered_at:
            self.presence.come(sign.rank)
            leader = Leader.of(pid)
            if leader is not None:
                self.processes[sign.rank] = leader
        if sign.has_left:
            self.presence.leave(sign.rank)
        if not sign.program.is_stopped:
            self._stopped_since.pop(pid, None)
        since = self._stopped_since.setdefault(pid, now) if sign.program.is_stopped else now
        if sign.program.status is None and now - since < self.heartbeat.answer_s:
            self.presence.opened(pid)
        else:
            self.presence.closed(pid)
