"""One client rank's connections to all server ranks, as long as none is lost and the server is not started again."""

import math
from collections.abc import Callable, Sequence

from stream_server.client_api import routing
from stream_server.client_api.connection import ConnectionFile
from stream_server.client_api.data_connection import DataConnection
from stream_server.client_api.messages import Block, Hello, Open, Welcome
from stream_server.client_api.patience import Patience
from stream_server.client_api.retention import Retention
from stream_server.client_api.transport import Transport
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, Unreachable
from stream_server.failpoints import failpoint

PING_S = 0.5
REOPEN_S = 1.0


class SessionOver(Exception):
    """The server was started again, and the connection file says where; or a connection to it was lost."""


class StudyEnded(Exception):
    """Nothing more is wanted; the text says why, as far as the server told."""


class Session:
    """Connections to the server of one epoch. Whatever waits here gives up when they are no good or the study ended.

    Raises, wherever it waits:
        SessionOver, StudyEnded: as they say.
        Unreachable: the server rank that is waited for said nothing for `silence_s`.
        Refused: a server rank refused a message.
    """

    def __init__(
        self,
        watch: ConnectionWatch,
        hello: Hello,
        welcome: Welcome,
        blocks: Sequence[Block],
        retention: Retention,
        *,
        silence_s: float,
    ) -> None:
        self.epoch = epoch_of(watch.file, welcome)
        self._watch = watch
        self._hello = hello
        self._welcome = welcome
        self._blocks = tuple(blocks)
        self._retention = retention
        self._who = f"simulation {welcome.simulation} rank {hello.rank}"
        self._silence_s = silence_s
        self._transport = Transport(
            host=watch.file.host, security=watch.file.security, num_connections=len(welcome.endpoints)
        )
        self._connections: list[DataConnection] = []

    def open(self) -> None:
        """Announce this client rank to all server ranks, and learn what they know."""
        welcome = self._welcome
        opening = Open(
            study=welcome.study,
            simulation=welcome.simulation,
            attempt=welcome.attempt,
            epoch=welcome.epoch,
            rank=self._hello.rank,
            num_ranks=self._hello.num_ranks,
            blocks=self._blocks,
        )
        num_ranks = len(welcome.endpoints)
        self._connections = [
            DataConnection(
                self._transport.connect(addresses),
                opening,
                self._retention,
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

    def connection(self, index: int) -> DataConnection:
        """The one over which a step has to go."""
        welcome = self._welcome
        return self._connections[
            routing.server_rank(welcome.routing, welcome.simulation, index, len(self._connections))
        ]

    def wait_for_room(self, connection: DataConnection, most_s: float = math.inf) -> bool:
        """Wait for credit, not much longer than `most_s`; whether there is some."""
        if not connection.has_room:
            # What this rank holds back for one server rank may be what the others wait for.
            self.flush()
            self._wait(connection, lambda it: it.has_room, DataConnection.ping, repeat_s=PING_S, most_s=most_s)
        return connection.has_room

    def flush(self) -> None:
        """Send all that waits for company."""
        for connection in self._connections:
            connection.flush()

    def end(self) -> None:
        """Say that all has been sent, and wait until it is settled."""
        self.flush()
        total = sum(connection.num_steps for connection in self._connections)
        failpoint("client.before_end")
        for connection in self._connections:
            connection.end(total)
        for connection in self._connections:
            self._wait(connection, lambda it: it.has_ended, DataConnection.ping, repeat_s=PING_S)
        failpoint("client.after_ended")

    def close(self, *, linger: bool) -> None:
        """Leave without a word; with `linger` what was sent may still go out for a moment."""
        for connection in self._connections:
            connection.leave()
        self._transport.close(linger=linger)

    def _wait(
        self,
        connection: DataConnection,
        done: Callable[[DataConnection], bool],
        repeat: Callable[[DataConnection], None],
        *,
        repeat_s: float,
        most_s: float = math.inf,
    ) -> None:
        """Wait for an answer on one connection, listening to all."""
        patience = Patience(timeout_s=self._silence_s, repeat_s=repeat_s, silent_s=connection.silent_s)
        while not done(connection) and not patience.has_lasted(most_s):
            if self._watch.newer_than(self.epoch):
                raise SessionOver
            if patience.is_over:
                stale = f"; a new server is there ({connection.stale})" if connection.stale else ""
                raise Unreachable(f"{self._who} waits for {connection}: no word for {self._silence_s:g} s{stale}")
            slice_s = min(patience.slice_s, self._watch.slice_s)
            ready = self._transport.wait(slice_s)
            patience.listened(slice_s)
            for other in self._connections:
                if other.dealer in ready and other.take_answers() and other is connection:
                    patience.heard()
            self._look_around()
            if patience.may_repeat():
                repeat(connection)
        connection.silent_s = patience.silent_s

    def _look_around(self) -> None:
        for connection in self._connections:
            if connection.has_stopped:
                raise StudyEnded(connection.stop_reason)
            if connection.stale and not self._watch.may_change:
                raise Refused(
                    f"{connection} was started again: {connection.stale}. {self._who} cannot find it any more, "
                    "since it was not given the path of a connection file"
                )
        if any(connection.is_lost for connection in self._connections):
            raise SessionOver


def epoch_of(file: ConnectionFile, welcome: Welcome) -> int:
    """The epoch of the server that welcomed us. It may be ahead of the file, but it is no news then."""
    return max(file.epoch, welcome.epoch)
