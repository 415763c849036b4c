"""The conversations of one server rank: with client ranks on its data socket, and with rank 0. Receiver thread.

Why: docs/decisions/0012-sparse-acknowledgements.md
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from msgspec import UNSET

from stream_server.errors import MalformedMessage, WrongProtocol
from stream_server.failpoints import failpoint
from stream_server.messages import notices, wire
from stream_server.messages.client import (
    Data,
    End,
    Hello,
    Invalidate,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    SegmentOffer,
    Stop,
)
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake import mailbox
from stream_server.server.intake.admission import Admission
from stream_server.server.intake.assembly import Assembly
from stream_server.server.intake.attempts import AttemptState, Connection
from stream_server.server.intake.client_segment import ClientSegment
from stream_server.server.intake.filling import Payload
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.reception.access import CurveAccess

MAX_LEFT = 1024


class ConversationState(Enum):
    """How far the conversation on a data connection has come."""

    NEW = "nothing is open"
    WAITING = "its Open waits for credit"
    OPEN = "open"
    FINISHED = "open, and its simulation is finished"
    STOPPED = "its simulation, or the study, was stopped"


class Response(Enum):
    """An answer to a message that is no Refusal; what is `HEARD` is dealt with by its kind."""

    HEARD = "heard"
    STOP = "Stop"
    NONE = "none"


HEARD, STOP, NONE = Response
BUSY, NOT_OPEN, STALE, MALFORMED = Reason.BUSY, Reason.NOT_OPEN, Reason.STALE_INCARNATION, Reason.MALFORMED
# The kinds of messages as `ANSWERS` has them.
KINDS = {Open: 0, Data: 1, End: 2, Ping: 3, Hello: 4, Invalidate: 4}
OTHERS = 5
ANSWERS: Mapping[ConversationState, tuple[Response | Reason, ...]] = {
    ConversationState.NEW: (HEARD, NOT_OPEN, NOT_OPEN, NOT_OPEN, STALE, MALFORMED),
    ConversationState.WAITING: (HEARD, BUSY, BUSY, BUSY, BUSY, BUSY),
    ConversationState.OPEN: (HEARD, HEARD, HEARD, HEARD, STALE, MALFORMED),
    ConversationState.FINISHED: (HEARD, STOP, HEARD, HEARD, STALE, MALFORMED),
    ConversationState.STOPPED: (STOP, STOP, STOP, STOP, STOP, STOP),
}
# In their place while a server that leaves takes nothing in: clients keep what they send for the next incarnation.
ANSWERS_WHEN_LEAVING: Mapping[int, Response | Reason] = {KINDS[Open]: BUSY, KINDS[Data]: NONE, KINDS[End]: NONE}
REFUSALS = {
    NOT_OPEN: "nothing was opened on this connection",
    STALE: "{} belongs on the control connection; the server was started again",
    MALFORMED: "{} is nothing that a client says on a data connection",
}


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
        """Acknowledge what was too little for `acknowledge_received`. Due several times a second."""
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


class Dispatcher:
    """Passes what client ranks and rank 0 say to the intake, and answers clients.

    Strangers and junk are refused, counted and forgotten. `reply` sends to a client and never blocks.
    `parameters` are those of the simulations that have begun, in the order of study.json. `is_final`: every simulation
    has ended, and no other will come; `is_round_over`: those of a round have, and the buffer is to be closed. Unless it
    `is_receiving`, steps are dropped without an answer, so that their clients keep them for the next incarnation.
    """

    def __init__(
        self,
        *,
        intake: Intake,
        access: CurveAccess,
        reply: Callable[[bytes, Message], None],
        tell_main: Callable[[mailbox.Event], None],
    ) -> None:
        self.intake = intake
        self.admission = Admission(intake.state, intake.settlement.credit)
        self.assembly = Assembly(intake)
        self.access = access
        self.reply = reply
        self.tell_main = tell_main
        self.parameters = SimulationParameters()
        self.connections: dict[bytes, Connection] = {}
        self.acknowledgements = Acknowledgements(self.connections, reply, credit=intake.state.credit)
        self.is_final = False
        self.is_round_over = False
        self.is_receiving = True
        self.stopped: Stop | None = None
        self._left: deque[bytes] = deque()

    def hear(self, peer: bytes, header: bytes, payload: Payload, user: str | None, process: int | None = None) -> None:
        """Deal with one message.

        `user` is the key of a newcomer over TCP, `process` that of one on this node; None where that is of no concern.
        """
        connection = self.connections.get(peer)
        if connection is not None and self.is_receiving and not self.stopped:
            series = self.assembly.expected(connection, header)
            if series is not None:
                self._answer(peer, self.assembly.take_next(connection, series, payload))
                return
        try:
            message = wire.decode(header)
        except WrongProtocol as problem:
            self._refuse(peer, Reason.WRONG_PROTOCOL, str(problem))
            return
        except MalformedMessage as problem:
            self._refuse(peer, Reason.MALFORMED, str(problem))
            return
        kind = KINDS.get(type(message), OTHERS)
        answer = ANSWERS[self.state(peer)][kind]
        if not self.is_receiving and not self.stopped:
            answer = ANSWERS_WHEN_LEAVING.get(kind, answer)
        match answer, message:
            case Response.HEARD, Data() as data if connection is not None:
                self._answer(peer, self.assembly.take(connection, data, header, payload))
            case Response.HEARD, Open() as opening:
                offer = opening.segment or None
                is_its_own = offer is not None and offer.pid == process
                self._open(peer, opening.without_segment, offer if is_its_own else None, user)
            case Response.HEARD, End() as end if connection is not None:
                refusal = self.assembly.finish(connection, end)
                failpoint("receiver.end_noted")
                self._answer(peer, refusal)
            case Response.HEARD, Ping() if connection is not None:
                self.acknowledgements.send(connection)
            case Response.STOP, _:
                self.reply(peer, self.stopped or Stop(text="" if connection is None else connection.attempt.why_ended))
            case Reason.BUSY, _:
                self._ask_for_patience(peer)
            case Reason() as reason, _:
                sequence = message.sequence if isinstance(message, Data) else None
                self._refuse(peer, reason, REFUSALS[reason].format(type(message).__name__), sequence)

    def state(self, peer: bytes) -> ConversationState:
        """How far the conversation with this client rank has come."""
        connection = self.connections.get(peer)
        if self.stopped or (connection is not None and connection.attempt.stopped_early):
            return ConversationState.STOPPED
        if connection is not None:
            return ConversationState.FINISHED if connection.attempt.finished else ConversationState.OPEN
        return ConversationState.WAITING if peer in self.admission.waiting else ConversationState.NEW

    def apply(self, notice: notices.Notice) -> None:
        """Do what a notice of rank 0 asks for; rank 0 itself is no exception."""
        self.assembly.settle_all()
        match notice:
            case notices.AttemptNotice():
                failpoint("receiver.before_attempt")
                self._leave(notice.simulation)
                self.intake.begin_attempt(notice.simulation, notice.attempt, goes_on=notice.goes_on)
                self.parameters[notice.simulation] = list(notice.parameters.values())
                self.access.allow(notice.simulation, notice.attempt, notice.key)
            case notices.AttemptOver():
                self.intake.end_attempt(notice.simulation, notice.attempt)
            case notices.Terminal():
                self._end_simulation(notice)
            case notices.AllTerminal(round_over=True):
                self.is_round_over = True
            case notices.AllTerminal():
                self.is_final = True
            case notices.StopNotice():
                self._stop(notice.reason)

    def end_turn(self) -> None:
        """Hand over what has come, admit the clients for which there is credit now, and acknowledge.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        self.assembly.settle_all()
        touched = self.intake.flush()
        if self.admission.waiting and self.is_receiving and not self.stopped:
            for peer, (message, offer) in list(self.admission.waiting.items()):
                self._admit(peer, message, offer)
            touched |= self.intake.flush()
        self.acknowledgements.acknowledge_received(touched.values())

    def close(self) -> None:
        """Let go of the memory of all clients."""
        for connection in self.connections.values():
            connection.close()

    def _open(self, peer: bytes, message: Open, offer: SegmentOffer | None, user: str | None) -> None:
        connection = self.connections.get(peer)
        if connection is not None:
            if connection.opening == message:
                self._say_opened(connection)
            else:
                self._refuse(peer, Reason.WRONG_BLOCKS, "the connection was opened before")
            return
        if user is not None and (problem := self.access.problem(user, message)):
            self._refuse(peer, Reason.WRONG_KEY, problem)
            return
        attempt = self.intake.attempt(message.simulation)
        if attempt is not None and (attempt.stopped_early or self._has_finished(attempt, message)):
            self.reply(peer, Stop(text=attempt.why_ended))
            return
        self._replace_lost(message)
        self._admit(peer, message, offer)
        if peer in self.admission.waiting:
            self._ask_for_patience(peer)

    def _replace_lost(self, message: Open) -> None:
        """Give up the connection of a client rank that opens again: it is lost, and what still comes over it is late.

        It would take up credit of the new connection, which knows nothing of it.
        """
        self.admission.forget(message)
        attempt = self.intake.attempt(message.simulation)
        lost = None if attempt is None else attempt.connections.get(message.rank)
        if lost is not None and lost.opening == message and self.connections.pop(lost.peer, None) is not None:
            lost.close()
            self.assembly.lose(lost)

    def _has_finished(self, attempt: AttemptState, message: Open) -> bool:
        """Whether the client had sent its `End`, and lost the connection before all was acknowledged as settled."""
        state = self.intake.state
        its = (message.study, message.incarnation, message.attempt)
        return attempt.finished and its == (state.study, state.incarnation, attempt.attempt)

    def _admit(self, peer: bytes, message: Open, offer: SegmentOffer | None) -> None:
        """Admit a client rank, refuse it, or let it wait.

        Raises:
            ConfigError: the types of all fields are known now, and the system refuses the memory for the slots.
        """
        answer = self.admission.answer(peer, message, offer)
        if isinstance(answer, Refusal):
            self.reply(peer, answer)
            return
        self.intake.settlement.changed.add(message.simulation)
        if answer is None:
            return
        self.intake.allocate()
        if offer is not None:
            answer.segment = ClientSegment.open(offer)
        failpoint("receiver.before_open")
        self.connections[peer] = answer
        self._say_opened(answer)
        self._answer(peer, self.assembly.settle_waiting(answer))

    def _say_opened(self, connection: Connection) -> None:
        state, known = self.intake.state, connection.attempt.packed_known()
        self.reply(
            connection.peer,
            Opened(
                incarnation=state.incarnation,
                credit=state.credit,
                known=known.hex(),
                segment=UNSET if connection.segment is None else True,
            ),
        )

    def _leave(self, simulation: int) -> None:
        """Let go of the connections of an attempt that is over: they may still ask how it went, but not for ever."""
        attempt = self.intake.attempt(simulation)
        if attempt is None:
            return
        for connection in attempt.connections.values():
            connection.close()
            self._left.append(connection.peer)
        attempt.connections.clear()
        while len(self._left) > MAX_LEFT:
            self.connections.pop(self._left.popleft(), None)

    def _end_simulation(self, notice: notices.Terminal) -> None:
        failpoint("receiver.before_terminal")
        self.intake.end_simulation(notice.simulation, notice.state, notice.reason)
        if notice.state == SimulationPhase.FINISHED:
            self.tell_main(mailbox.SimulationFinished(simulation=notice.simulation))
            if notice.simulation in self.parameters:
                for observer in self.intake.observers:
                    for text in observer.finish(notice.simulation, self.parameters[notice.simulation]):
                        self.tell_main(mailbox.SimulationWarning(text=text))
        elif notice.state == SimulationPhase.STOPPED_EARLY:
            attempt = self.intake.attempt(notice.simulation)
            for connection in () if attempt is None else attempt.connections.values():
                self._tell_to_stop(connection, notice.reason)
        else:
            self.access.forget(notice.simulation)
        self._leave(notice.simulation)

    def _stop(self, reason: str) -> None:
        """Tell all clients that nothing more is wanted, and why, also those who ask later."""
        self.stopped = Stop(text=reason)
        for connection in self.connections.values():
            self._tell_to_stop(connection, reason)
        self.close()

    def _tell_to_stop(self, connection: Connection, reason: str) -> None:
        self.reply(connection.peer, Stop(text=reason))
        self.reply(connection.peer, connection.ack(stop=True))

    def _answer(self, peer: bytes, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.reply(peer, refusal)

    def _refuse(self, peer: bytes, reason: Reason, text: str, sequence: int | None = None) -> None:
        self.reply(peer, self.intake.state.refuse(reason, text, sequence))

    def _ask_for_patience(self, peer: bytes) -> None:
        self.reply(peer, Refusal(reason=Reason.BUSY, text="there is no room for another simulation yet"))
