"""The ranks' signs of life, as the launcher sees them, without sockets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.machine.processes import Leader
from tests.faults.simulated.machine import Program

if TYPE_CHECKING:
    from tests.faults.simulated.world import World


@dataclass(slots=True)
class Sign:
    """A rank's connection, made at `since`. Its first word arrives, also if the rank dies before it is read."""

    rank: int
    program: Program
    since: float
    has_left: bool = False
    is_known: bool = False


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


class SimulatedLiveness(LivenessSocket):
    """The real one's judgement of connections that break when their rank dies, or is stopped for too long."""

    world: "World"

    def __enter__(self) -> Self:
        self._entered_at = self.world.threads.now
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _receive(self) -> None:
        for sign in self.world.signs.at(self.address):
            if not sign.is_known or (not sign.program.is_stopped and sign.program.status is None):
                self._hear_of(sign)
                sign.is_known = True
            if sign.has_left:
                self.ranks.leave(sign.rank)

    def _ask(self) -> None:
        for sign in self.world.signs.at(self.address):
            if sign.program.status is not None:
                self.ranks.is_broken(sign.rank)

    def _hear_of(self, sign: Sign) -> None:
        self.ranks.heard(sign.rank)
        leader = Leader.of(sign.program.pid) if sign.since >= self._entered_at else None
        if leader is not None:
            self.processes[sign.rank] = leader
