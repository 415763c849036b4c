"""Acknowledgements: which messages of a client are received, and which are durable. Receiver thread."""

from collections.abc import Callable, Iterable, Mapping

from stream_server.failpoints import failpoint
from stream_server.messages.client import Message
from stream_server.server.intake.attempts import Connection


class Acknowledgements:
    """Tells clients how far their messages are *received* (in the stream) and *durable* (in a committed checkpoint).

    Each is told by a mark: all messages of the connection below it are received, or durable. Not every message is
    answered. Once half of the `credit` is received, the client is told so, before it has used up the other half and
    must wait; anything less is acknowledged several times a second (`acknowledge_owed`). `connections` are the open
    ones by peer, which others open and close; `reply` sends to a client.
    """

    def __init__(
        self, connections: Mapping[bytes, Connection], reply: Callable[[bytes, Message], None], *, credit: int
    ) -> None:
        self.connections = connections
        self.reply = reply
        self._few = (credit + 1) // 2
        self._owed: dict[bytes, Connection] = {}

    def send(self, connection: Connection) -> None:
        """Tell a client how far its connection has come."""
        failpoint("receiver.before_ack")
        connection.acknowledged = connection.received
        connection.num_owed = 0
        self.reply(connection.peer, connection.ack())

    def acknowledge_received(self, connections: Iterable[Connection]) -> None:
        """Acknowledge, at the end of a turn, what of these connections is received, unless it is little."""
        for connection in connections:
            if connection.num_owed >= self._few or connection.ended:
                self.send(connection)
            elif connection.received != connection.acknowledged:
                self._owed[connection.peer] = connection

    def acknowledge_owed(self) -> None:
        """Acknowledge the little, too, which a client may wait for all the same. Due several times a second."""
        owed, self._owed = self._owed, {}
        for connection in owed.values():
            if connection.received != connection.acknowledged:
                self.send(connection)

    def received_marks(self) -> dict[bytes, int]:
        """How far each connection is received now: durable once that is in a committed checkpoint."""
        return {peer: connection.received for peer, connection in self.connections.items()}

    def acknowledge_durable(self, marks: Mapping[bytes, int]) -> None:
        """Acknowledge as durable what lies below these `received_marks`: their checkpoint is committed."""
        failpoint("receiver.before_durable")
        for peer, mark in marks.items():
            connection = self.connections.get(peer)
            if connection is not None and mark > connection.durable:
                connection.durable = mark
                self.send(connection)
