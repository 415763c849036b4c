"""A network that delays and cuts: what lies between the sockets of `messaging`.

A *line* is a connection of one DEALER to an address. Messages on it keep their order and come late; those on different
lines overtake each other. What is under way when a line is cut, or one of its ends dies, is lost from some message on.
A DEALER connects again by itself, as libzmq does, and is a stranger to the ROUTER then.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.faults.simulated.threads import Process, Threads

if TYPE_CHECKING:
    from tests.faults.simulated.messaging import Socket

Frames = tuple[bytes, ...]

FIRST_PORT = 20000
RECONNECT_S = 0.1
UP, DOWN = 0, 1


def place_of(address: str) -> str:
    """The name of a listener: of TCP the port alone, for there is one machine."""
    return f"tcp:{address.rpartition(':')[2]}" if address.startswith("tcp:") else address


class Line:
    """One connection to a `place`; `far` is the bound socket there, while there is one.

    `waiting` is what the DEALER has sent before that, `under_way` what is on the network, up and down.
    """

    def __init__(self, near: "Socket", address: str) -> None:
        self.near = near
        self.place = place_of(address)
        self.far: Socket | None = None
        self.peer = b""
        self.waiting: deque[Frames] = deque()
        self.under_way: tuple[deque[Frames], deque[Frames]] = (deque(), deque())
        self.free_at = [0.0, 0.0]
        self.life = 0
        self.is_closed = False


class Network:
    """All lines and bound sockets. `delay_s` is the mean of what a message takes."""

    def __init__(self, threads: Threads, random: Random, *, delay_s: float) -> None:
        self.threads = threads
        self.random = random
        self.delay_s = delay_s
        self.num_carried = 0
        self._bound: dict[str, Socket] = {}
        self._lines: list[Line] = []
        self._num_peers = 0
        self._stalled_until = 0.0

    def bind(self, socket: "Socket", address: str) -> str:
        """Somebody listens at this address from now on; returns it, with a port where it asked for any."""
        if address.startswith("inproc:"):
            # Of one context alone, in which nobody asks: no line is encrypted here.
            return address
        if address.endswith(":*"):
            # The lowest free one: a new server gets that of the one before, to which clients still speak.
            port = next(it for it in itertools.count(FIRST_PORT) if f"tcp:{it}" not in self._bound)
            address = f"{address[:-1]}{port}"
        place = place_of(address)
        assert place not in self._bound, f"{address} is bound already"
        self._bound[place] = socket
        for line in [it for it in self._lines if it.place == place]:
            self._connect_soon(line, RECONNECT_S)
        return address

    def connect(self, socket: "Socket", address: str) -> Line:
        """A line to whoever listens at this address, now or later."""
        line = Line(socket, address)
        self._lines.append(line)
        self._connect_soon(line, self.delay_s)
        return line

    def send_up(self, line: Line, frames: Frames) -> None:
        """From the DEALER; kept until somebody listens."""
        if line.far is None:
            line.waiting.append(frames)
        else:
            self._carry(line, UP, frames)

    def send_down(self, line: Line, frames: Frames, limit: int) -> None:
        """To the DEALER; dropped when more than `limit` (if not 0) are on their way, as a ROUTER does."""
        if limit and len(line.under_way[DOWN]) + len(line.near.inbox) >= limit:
            return
        self._carry(line, DOWN, frames)

    def close(self, socket: "Socket", *, abruptly: bool) -> None:
        """A socket is gone; what it has sent still arrives, unless it goes abruptly: then only the first part of it."""
        for line in [it for it in self._lines if it.near is socket]:
            self._deliver_rest(line, UP, everything=not abruptly)
            self._part(line)
            line.is_closed = True
            self._lines.remove(line)
        for place in [it for it, bound in self._bound.items() if bound is socket]:
            del self._bound[place]
        for line in [it for it in self._lines if it.far is socket]:
            self._deliver_rest(line, DOWN, everything=not abruptly)
            self._part(line)

    def lose(self, process: Process) -> None:
        """All sockets of a process die with it."""
        mine = {id(it.near): it.near for it in self._lines if it.near.process is process}
        mine |= {id(it): it for it in self._bound.values() if it.process is process}
        for socket in mine.values():
            self.close(socket, abruptly=True)

    def lines(self, wanted: Callable[[Line], bool]) -> list[Line]:
        """Those that are connected and wanted, in the order in which they were made."""
        return [line for line in self._lines if line.far is not None and wanted(line)]

    def cut(self, line: Line) -> None:
        """Break a line; the DEALER connects again soon."""
        self._deliver_rest(line, UP, everything=False)
        self._deliver_rest(line, DOWN, everything=False)
        self._part(line)
        self._connect_soon(line, RECONNECT_S)

    def stall(self, seconds: float) -> None:
        """Nothing that is sent from now on arrives before these seconds are over."""
        self._stalled_until = self.threads.now + seconds

    def _connect_soon(self, line: Line, within_s: float) -> None:
        self.threads.after(self.random.uniform(0.0, within_s), partial(self._try_to_connect, line))

    def _try_to_connect(self, line: Line) -> None:
        bound = self._bound.get(line.place)
        if line.is_closed or line.far is not None or bound is None:
            return
        self._num_peers += 1
        line.far = bound
        line.peer = line.near.routing_id or b"\0" + self._num_peers.to_bytes(4, "big")
        bound.peers[line.peer] = line
        while line.waiting:
            self._carry(line, UP, line.waiting.popleft())

    def _part(self, line: Line) -> None:
        if line.far is not None:
            line.far.peers.pop(line.peer, None)
        line.far = None
        line.life += 1
        for frames in line.under_way:
            frames.clear()

    def _carry(self, line: Line, way: int, frames: Frames) -> None:
        self.num_carried += 1
        arrives_at = self.threads.now + self.random.expovariate(1.0 / self.delay_s)
        line.free_at[way] = max(arrives_at, line.free_at[way], self._stalled_until)
        line.under_way[way].append(frames)
        self.threads.at(line.free_at[way], partial(self._arrive, line, way, line.life))

    def _arrive(self, line: Line, way: int, life: int) -> None:
        if life == line.life:
            self._hand_over(line, way, line.under_way[way].popleft())

    def _hand_over(self, line: Line, way: int, frames: Frames) -> None:
        if way == DOWN:
            line.near.inbox.append(frames)
        elif line.far is not None:
            line.far.inbox.append((line.peer, *frames) if line.far.is_router else frames)

    def _deliver_rest(self, line: Line, way: int, *, everything: bool) -> None:
        """Deliver messages that were with the kernel already, though their sender is gone."""
        left = line.under_way[way]
        num = len(left) if everything else self.random.randint(0, len(left))
        for frames in list(_first(left, num)):
            self._hand_over(line, way, frames)


def _first(frames: deque[Frames], num: int) -> Iterator[Frames]:
    for _ in range(num):
        yield frames.popleft()
