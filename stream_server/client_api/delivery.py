"""One client rank's steps on their way to all the server ranks."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stream_server.client_api import routing
from stream_server.client_api.connection import ConnectionFile
from stream_server.client_api.control import ask
from stream_server.client_api.data_connection import DataConnection
from stream_server.client_api.fields import Fields
from stream_server.client_api.messages import Block, Invalidate, Invalidated, Open, Stop, Welcome
from stream_server.client_api.patience import Patience
from stream_server.client_api.transport import Transport
from stream_server.errors import Refused, SimulationError, Unreachable

PING_S = 0.5
REOPEN_S = 1.0


class Delivery:
    """Routes steps to the server ranks, waits for credit, and sees to it that all has arrived.

    The connections are made at the first step, when the blocks are known.
    """

    def __init__(
        self, connection: ConnectionFile, welcome: Welcome, *, rank: int, num_ranks: int, timeout_s: float
    ) -> None:
        self.has_stopped = False
        self._connection = connection
        self._welcome = welcome
        self._rank = rank
        self._num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._who = f"simulation {welcome.simulation} rank {rank}"
        self._fields = Fields(welcome.fields, rank=rank, num_ranks=num_ranks)
        self._transport: Transport | None = None
        self._connections: list[DataConnection] = []

    def declare_field(self, name: str, shape: Sequence[int], offset: Sequence[int] | None) -> None:
        """Say where this rank's block of a field begins; before the first step."""
        self._fields.declare(name, shape, offset)

    def send(self, index: int, sample: Mapping[str, Any]) -> bool:
        """Send a step; False once the study has ended."""
        if not self._connections:
            self._open(self._fields.settle(sample))
        present, arrays = self._fields.arrays(sample)
        welcome = self._welcome
        rank = routing.server_rank(welcome.routing, welcome.simulation, index, len(self._connections))
        connection = self._connections[rank]
        is_new = connection.enter(index)
        if not arrays:
            connection.take_answers()
        elif is_new:
            if not connection.has_room:
                self._wait_for_room(connection)
            if not self.has_stopped:
                connection.send(index, present, arrays)
        self.has_stopped |= connection.has_stopped
        return not self.has_stopped

    def finish(self) -> None:
        """Wait until every step is settled on the server."""
        if not self._connections:
            self._open(())
        for connection in self._connections:
            connection.flush()
        total = sum(connection.num_steps for connection in self._connections)
        for connection in self._connections:
            connection.end(total)
        for connection in self._connections:
            self._wait(connection, lambda it: it.has_ended, DataConnection.ping, repeat_s=PING_S)

    def invalidate(self, reason: str) -> None:
        """Withdraw all that was sent, and leave."""
        self.close()
        question = Invalidate(
            study=self._welcome.study,
            simulation=self._welcome.simulation,
            attempt=self._welcome.attempt,
            reason=reason,
        )
        answer = ask(question, self._connection, who=self._who, timeout_s=self._timeout_s)
        if not isinstance(answer, Invalidated | Stop):
            raise Refused(f"{self._who} could not be invalidated: {getattr(answer, 'text', answer)}")

    def abandon(self) -> None:
        """Leave unfinished, but let what was sent go out for a moment."""
        with contextlib.suppress(SimulationError):
            for connection in self._connections:
                connection.flush()
        self._close_transport(linger=True)

    def close(self) -> None:
        """Leave without a word. May be called at any time, and again."""
        self._close_transport(linger=False)

    def _close_transport(self, *, linger: bool) -> None:
        if self._transport is not None:
            self._transport.close(linger=linger)
            self._transport = None

    def _open(self, blocks: tuple[Block, ...]) -> None:
        welcome = self._welcome
        self._transport = Transport(host=self._connection.host, security=self._connection.security)
        opening = Open(
            study=welcome.study,
            simulation=welcome.simulation,
            attempt=welcome.attempt,
            epoch=welcome.epoch,
            rank=self._rank,
            num_ranks=self._num_ranks,
            blocks=blocks,
        )
        num_ranks = len(welcome.endpoints)
        self._connections = [
            DataConnection(
                self._transport.connect(addresses),
                opening,
                server_rank=rank,
                stride=routing.stride(welcome.routing, num_ranks),
                num_server_ranks=num_ranks,
            )
            for rank, addresses in enumerate(welcome.endpoints)
        ]
        for connection in self._connections:
            connection.ask_to_open()
        for connection in self._connections:
            self._wait(connection, lambda it: it.is_open, DataConnection.ask_to_open, repeat_s=REOPEN_S)

    def _wait_for_room(self, connection: DataConnection) -> None:
        # What this rank holds back for one server rank may be what the others wait for.
        for other in self._connections:
            other.flush()
        self._wait(connection, lambda it: it.has_room, DataConnection.ping, repeat_s=PING_S)

    def _wait(
        self,
        connection: DataConnection,
        done: Callable[[DataConnection], bool],
        repeat: Callable[[DataConnection], None],
        *,
        repeat_s: float,
    ) -> None:
        """Wait for an answer on one connection, listening to all; ends early when the study has."""
        assert self._transport is not None
        patience = Patience(timeout_s=self._timeout_s, repeat_s=repeat_s)
        while not self.has_stopped and not done(connection):
            if patience.is_over:
                raise Unreachable(f"{self._who} waits for {connection}: no word for {self._timeout_s:g} s")
            ready = self._transport.wait(patience.slice_s)
            for other in self._connections:
                if other.dealer in ready and other.take_answers() and other is connection:
                    patience.heard()
            self.has_stopped = any(it.has_stopped for it in self._connections)
            if patience.may_repeat():
                repeat(connection)
