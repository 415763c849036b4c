"""The conversations with the client ranks on the data socket of one server rank. Receiver thread."""

from collections import deque
from collections.abc import Callable, Mapping

from stream_server.client_api import wire
from stream_server.client_api.messages import (
    Ack,
    Data,
    End,
    Hello,
    Invalidate,
    Message,
    Open,
    Ping,
    Reason,
    Refusal,
    Stop,
)
from stream_server.errors import MalformedMessage, WrongProtocol
from stream_server.failpoints import failpoint
from stream_server.server.access import Access
from stream_server.server.filling import Inlet
from stream_server.server.intake import Intake
from stream_server.server.tracker import Tracker
from stream_server.server.tracks import Connection

MAX_LEFT = 1024


class Clients:
    """Answers what client ranks say; strangers and junk are refused, counted and forgotten.

    `reply` sends to a client and never blocks. Acknowledgements are cumulative, so each connection gets at most
    one per turn.
    """

    def __init__(
        self, *, tracker: Tracker, intake: Intake, access: Access | None, reply: Callable[[bytes, Message], None]
    ) -> None:
        self.tracker = tracker
        self.intake = intake
        self.access = access
        self.reply = reply
        self.connections: dict[bytes, Connection] = {}
        self.stopped = False
        self._left: deque[bytes] = deque()

    def hear(self, peer: bytes, header: bytes, inlet: Inlet, user: str | None) -> None:
        """Deal with one message; `user` is the key of a newcomer over TCP, None where that is of no concern."""
        connection = self.connections.get(peer)
        if connection is not None and not self.stopped and self.intake.goes_on(connection, header):
            refusal = self.intake.take_next(connection, inlet)
            if refusal is not None:
                self.reply(peer, refusal)
            return
        try:
            message = wire.decode(header)
        except WrongProtocol as problem:
            self.reply(peer, self.tracker.refuse(Reason.WRONG_PROTOCOL, str(problem)))
            return
        except MalformedMessage as problem:
            self.reply(peer, self.tracker.refuse(Reason.MALFORMED, str(problem)))
            return
        if self.stopped:
            self.reply(peer, Ack(received=0, durable=0, stop=True))
        elif type(message) is Data and connection is not None and connection.track.finished:
            # The last step once more.
            self.reply(peer, Stop(text=f"simulation {message.simulation} is finished"))
        elif type(message) is Data and connection is not None:
            refusal = self.intake.take(connection, message, inlet)
            if refusal is not None:
                self.reply(peer, refusal)
            else:
                self.intake.expect(connection, message, header)
        elif isinstance(message, Open):
            self._open(peer, message, user)
        elif connection is not None and isinstance(message, Ping):
            self._acknowledge(connection)
        elif connection is not None and isinstance(message, End):
            self._end(connection, message)
        elif peer in self.tracker.openings.waiting:
            self._ask_for_patience(peer)
        elif isinstance(message, Data | End | Ping):
            sequence = message.sequence if isinstance(message, Data) else None
            self.reply(peer, self.tracker.refuse(Reason.NOT_OPEN, "nothing was opened on this connection", sequence))
        elif isinstance(message, Hello | Invalidate):
            text = f"{type(message).__name__} belongs on the control connection; the server was started again"
            self.reply(peer, self.tracker.refuse(Reason.STALE_EPOCH, text))
        else:
            text = f"{type(message).__name__} is nothing that a client says on a data connection"
            self.reply(peer, self.tracker.refuse(Reason.MALFORMED, text))

    def end_turn(self) -> None:
        """Hand over what has come, let in those for whom there is room now, and acknowledge."""
        self.intake.flush()
        if self.tracker.openings.waiting and not self.stopped:
            for peer, answer in self.tracker.come_in():
                self._opened(peer, answer)
            self.intake.flush()
        for connection in self.intake.touched.values():
            if connection.received != connection.acknowledged or connection.ended:
                self._acknowledge(connection)
        self.intake.touched.clear()

    def leave(self, simulation: int) -> None:
        """An attempt is over: its connections may still ask how it went, but not for ever."""
        track = self.tracker.track(simulation)
        if track is None:
            return
        self._left += [connection.peer for connection in track.connections.values()]
        track.connections.clear()
        while len(self._left) > MAX_LEFT:
            self.connections.pop(self._left.popleft(), None)

    def stop(self, reason: str) -> None:
        """Nothing more is wanted: tell everybody now and why, and everybody who asks later that it is so."""
        self.stopped = True
        self.intake.touched.clear()
        for connection in self.connections.values():
            self.reply(connection.peer, Stop(text=reason))
            self.reply(connection.peer, self.tracker.ack(connection, stop=True))

    def received_marks(self) -> dict[bytes, int]:
        """How far each connection has come, for `make_durable` once that is in a committed checkpoint."""
        return {peer: connection.received for peer, connection in self.connections.items()}

    def make_durable(self, marks: Mapping[bytes, int]) -> None:
        """A checkpoint with all that came up to these marks is committed: the clients may forget it."""
        failpoint("receiver.before_durable")
        for peer, mark in marks.items():
            connection = self.connections.get(peer)
            if connection is not None and mark > connection.durable:
                connection.durable = mark
                self._acknowledge(connection)

    def _open(self, peer: bytes, message: Open, user: str | None) -> None:
        connection = self.connections.get(peer)
        if connection is not None:
            if connection.opening == message:
                self.reply(peer, self.tracker.opened(connection))
            else:
                self.reply(peer, self.tracker.refuse(Reason.WRONG_BLOCKS, "the connection was opened before"))
            return
        if self.access is not None and user is not None and (problem := self.access.problem(user, message)):
            self.reply(peer, self.tracker.refuse(Reason.WRONG_KEY, problem))
            return
        if self.tracker.has_finished(message):
            self.reply(peer, Stop(text=f"simulation {message.simulation} is finished"))
            return
        self._leave_behind(message)
        answer = self.tracker.open(peer, message)
        if answer is None:
            self._ask_for_patience(peer)
        else:
            self._opened(peer, answer)

    def _leave_behind(self, message: Open) -> None:
        """Who opens again has lost the connection: what still comes over the old one is late, and refused.

        It would take up credit of the new connection, which knows nothing of it.
        """
        for peer in [peer for peer, other in self.tracker.openings.waiting.items() if other == message]:
            del self.tracker.openings.waiting[peer]
        track = self.tracker.track(message.simulation)
        lost = None if track is None else track.connections.get(message.rank)
        if lost is None or lost.opening != message or self.connections.pop(lost.peer, None) is None:
            return
        self.intake.settle_streak(lost.track)
        self.tracker.assembly.leave(lost)

    def _opened(self, peer: bytes, answer: Connection | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.reply(peer, answer)
            return
        failpoint("receiver.before_open")
        self.connections[peer] = answer
        self.intake.allocate()
        self.reply(peer, self.tracker.opened(answer))
        for run in self.tracker.assembly.whole(answer):
            self.intake.settle(run)

    def _end(self, connection: Connection, message: End) -> None:
        self.intake.settle_streak(connection.track)
        refusal = self.tracker.finished_sending(connection, message)
        failpoint("receiver.end_noted")
        if refusal is not None:
            self.reply(connection.peer, refusal)
            return
        for other in connection.track.connections.values():
            self.intake.touched[other.peer] = other

    def _acknowledge(self, connection: Connection) -> None:
        failpoint("receiver.before_ack")
        ack = self.tracker.ack(connection)
        connection.acknowledged = ack.received
        self.reply(connection.peer, ack)

    def _ask_for_patience(self, peer: bytes) -> None:
        self.reply(peer, Refusal(reason=Reason.BUSY, text="there is no room for another simulation yet"))
