"""Acknowledgements: which messages of a client are received, and which are durable. Receiver thread."""

from collections.abc import Callable, Iterable, Mapping

from stream_server.failpoints import failpoint
from stream_server.messages.client import Message
from stream_server.server.intake.attempts import Connection


class Acknowledgements:
    """Tells clients how far their messages are *received* (in the stream) and *durable* (in a committed checkpoint).

    Both are marks below which that holds for all messages of a connection, so each gets at most one acknowledgement per
    turn. `connections` are the open ones by peer, which others open and close; `reply` sends to a client.
    """

    def __init__(self, connections: Mapping[bytes, Connection], reply: Callable[[bytes, Message], None]) -> None:
        self.connections = connections
        self.reply = reply

    def send(self, connection: Connection) -> None:
        """Tell a client how far its connection has come."""
        failpoint("receiver.before_ack")
        connection.acknowledged = connection.received
        self.reply(connection.peer, connection.ack())

    def acknowledge_received(self, connections: Iterable[Connection]) -> None:
        """Acknowledge, at the end of a turn, what of these connections is received and not acknowledged yet."""
        for connection in connections:
            if connection.received != connection.acknowledged or connection.ended:
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
