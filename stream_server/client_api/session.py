"""One client rank's session with the study, over all starts of the server and all losses of a connection.

A new server knows only what is in its checkpoint. So after a loss the session continues this way:

1. `_set_aside` keeps all steps that may not have arrived.
2. `_say_hello` asks rank 0 again, at the place that the connection file names now.
3. `_open` announces this rank to all server ranks, which answer with the steps that they know.
4. `_account` leaves the unknown ones to be sent again; one without a copy ends the attempt.
"""

import contextlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from stream_server.client_api.data_connection import DataConnection
from stream_server.client_api.hello import SilenceTimer, ask
from stream_server.client_api.retention import OrderedSteps, Retention, Steps
from stream_server.client_api.segment import RetentionSegment
from stream_server.client_api.transport import Transport
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, SimulationError, StepsLost, Unreachable
from stream_server.failpoints import failpoint
from stream_server.messages.client import Block, Hello, Invalidate, Invalidated, Open, Stop, Welcome
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.routing import Dealing
from stream_server.wording import counted

PING_S = 0.5
REOPEN_S = 1.0
RELEASE_S = 1.0
# Steps on their way, beside those that are retained.
UNDER_WAY_BYTES = 64 * 1024 * 1024


class _ConnectionLost(Exception):
    """The server was started again, and the connection file says where; or a connection to it was lost."""


class _StudyEnded(Exception):
    """The study wants nothing more; the text says why, if the server gave a reason."""


class Session:
    """Sends steps to the server, and again the ones that a restarted server does not know.

    It connects to all server ranks with the first step, or with the end if there is none, and then announces `blocks`
    and `static_blocks`, whose arrays are `statics`.
    `has_stopped` says that the study has ended, `stop_reason` why, as far as the server told. `hello` is said to each
    new server; `welcome` is what the last one answered.

    The ranks of a parallel simulation could wait for each other for ever. This rank waits for credit, which it gets
    once the server has the parts of all ranks. Another rank may have sent its part into a connection that was just
    lost. It will not notice before its next call, and may not get there: its solver waits for this rank. So after
    RELEASE_S this rank keeps its step, to be sent later, and goes on; it keeps at most as many steps as the credit.

    Raises, from `send` and `finish`:
        Refused: a server rank refused a message, or a restarted server refused this simulation.
        Unreachable: a server rank said nothing for `silence_s` while this client waited for it, nor did the launcher.
        StepsLost: a restarted server lacks a step of which this client has no copy any more.
    """

    def __init__(self, watch: ConnectionWatch, hello: Hello, welcome: Welcome, *, silence_s: float) -> None:
        self.hello = hello
        self.welcome = welcome
        self.who = f"simulation {welcome.simulation} rank {hello.rank}"
        self.blocks: tuple[Block, ...] = ()
        self.static_blocks: tuple[Block, ...] = ()
        self.statics: Sequence[np.ndarray] = ()
        self.has_stopped = False
        self.stop_reason = ""
        self._watch = watch
        self._incarnation = _incarnation_of(watch.file, welcome)
        self._silence_s = silence_s
        self._entered = OrderedSteps()
        self._retention = Retention(max_bytes=welcome.window_bytes)
        self._segment: RetentionSegment | None = None
        self._transport: Transport | None = None
        self._connections: list[DataConnection] = []
        self._dealing = Dealing(welcome.routing, len(welcome.endpoints))
        # The connection file is looked at between messages, not between the steps of one.
        self._has_sent = False
        self._num_released = 0

    def send(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Send a step, now or together with the next ones; blocks while there is no credit, or for RELEASE_S."""
        while not self.has_stopped:
            try:
                if self._transport is None or self._has_sent:
                    self._connect()
                connection = self._connection_of(index)
                is_wanted = bool(arrays) and index not in connection.known
                may_go = self._send_unsent(math.inf if is_wanted else 0.0)
                if may_go and is_wanted:
                    may_go = self._wait_for_room(connection)
                if connection.is_lost:
                    raise _ConnectionLost
                # From here on the step belongs to what a new server has to have.
                is_new = self._entered.add(index)
                connection.num_steps += is_new
                if not is_wanted:
                    connection.take_answers()
                elif may_go:
                    self._has_sent = connection.send(index, present, arrays)
                elif is_new:
                    self._retain(index, present, arrays)
                    self._num_released += 1
                    self._has_sent = True
                if connection.has_stopped:
                    self._stop(connection.stop_reason)
                return
            except _ConnectionLost:
                self._disconnect()
            except _StudyEnded as ended:
                self._stop(str(ended))

    def finish(self) -> None:
        """Wait until every step is settled on the server."""
        while not self.has_stopped:
            try:
                self._connect()
                while not self._send_unsent():
                    pass
                self._end()
                return
            except _ConnectionLost:
                self._disconnect()
            except _StudyEnded as ended:
                self._stop(str(ended))

    def invalidate(self, reason: str) -> None:
        """Withdraw all that was sent, and leave.

        Raises:
            Refused, Unreachable: as for `send`.
        """
        self.close()
        welcome = self.welcome
        question = Invalidate(
            study=welcome.study, simulation=welcome.simulation, attempt=welcome.attempt, reason=reason
        )
        answer = ask(question, self._watch, who=self.who, timeout_s=self._silence_s)
        if not isinstance(answer, Invalidated | Stop):
            raise Refused(f"{self.who} could not be invalidated: {getattr(answer, 'text', answer)}")

    def interrupt(self) -> None:
        """Go on without the server: `keep` what would be sent, until `may_resume` and then `send` or `finish`."""
        self._set_aside()
        self._retention.unsent_may_go = True

    def keep(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Keep a step while interrupted; the oldest ones go when there is no room."""
        if self._entered.add(index) and arrays:
            self._retain(index, present, arrays)

    def may_resume(self, *, look_now: bool = False) -> bool:
        """Whether the server was started again since it was spoken to."""
        return self._watch.newer_than(self._incarnation, look_now=look_now)

    def is_durable(self, index: int) -> bool:
        """Whether a committed checkpoint has this step, as far as the server has said."""
        if index in self._retention.durable or not self._connections:
            return index in self._retention.durable
        connection = self._connection_of(index)
        connection.take_answers()
        return index in self._retention.durable or (connection.has_durable and index in connection.known)

    def close(self, *, linger: bool = False) -> None:
        """Leave without a word; with `linger` what was sent may still go out for a moment. May be called again."""
        self._disconnect(linger=linger)
        self._retention.close()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def abandon(self) -> None:
        """Leave, but let what was sent go out for a moment."""
        with contextlib.suppress(SimulationError):
            self._flush()
        self.close(linger=True)

    def _disconnect(self, *, linger: bool = False) -> None:
        if self._transport is None:
            return
        for connection in self._connections:
            connection.leave()
        self._transport.close(linger=linger)
        self._transport = None
        self._connections = []

    def _retain(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        payload = [[memoryview(array.tobytes())] for array in arrays]
        self._retention.keep(index, Steps(range(index, index + 1), present, payload))

    def _longest_wait_s(self, connection: DataConnection) -> float:
        may_keep = self.hello.num_ranks > 1 and self._num_released < connection.credit
        return RELEASE_S if may_keep else math.inf

    def _stop(self, reason: str) -> None:
        self.has_stopped, self.stop_reason = True, reason

    def _connect(self) -> None:
        """Speak to the newest server, and let it have all that it does not have."""
        if self._transport is not None and not self._watch.newer_than(self._incarnation):
            return
        while True:
            self._set_aside()
            is_new = self._watch.newer_than(self._incarnation)
            if is_new:
                self._say_hello()
            try:
                self._open()
                failpoint("client.after_opened")
                self._account(is_new=is_new)
                return
            except _ConnectionLost:
                continue

    def _set_aside(self) -> None:
        """Leave the server, if there is one, with all that it may not have."""
        self._disconnect()
        self._retention.unsent_may_go = False
        self._retention.set_aside(self._entered)

    def _say_hello(self) -> None:
        failpoint("client.before_reconnect")
        # A server that does not even answer is not tried again, only the next one.
        self._incarnation = self._watch.file.incarnation
        answer = ask(self.hello, self._watch, who=self.who, timeout_s=self._silence_s)
        if isinstance(answer, Stop):
            raise _StudyEnded(answer.text)
        if not isinstance(answer, Welcome):
            text = getattr(answer, "text", answer)
            raise Refused(f"{self.who} cannot go on in study {self.welcome.study}, which was started again: {text}")
        self.welcome = answer
        self._incarnation = _incarnation_of(self._watch.file, answer)

    def _open(self) -> None:
        """Announce this client rank to all server ranks, and learn what they know."""
        welcome, file = self.welcome, self._watch.file
        opening = Open(
            study=welcome.study,
            simulation=welcome.simulation,
            attempt=welcome.attempt,
            incarnation=welcome.incarnation,
            rank=self.hello.rank,
            num_ranks=self.hello.num_ranks,
            blocks=self.blocks,
            static_blocks=self.static_blocks,
        )
        num_ranks = len(welcome.endpoints)
        self._dealing = Dealing(welcome.routing, num_ranks)
        self._transport = Transport(host=file.host, security=file.security, num_connections=num_ranks)
        # The size of a message gives the length of its step.
        is_ragged = any(field.ragged and not field.is_static for field in welcome.fields)
        dealers = [self._transport.connect(addresses) for addresses in welcome.endpoints]
        if self._segment is None and not is_ragged and not all(dealer.is_tcp for dealer in dealers):
            self._segment = RetentionSegment.make(welcome.window_bytes + UNDER_WAY_BYTES)
        self._connections = [
            DataConnection(
                dealer,
                opening,
                self.statics,
                self._retention,
                server_rank=rank,
                stride=self._dealing.stride,
                num_server_ranks=num_ranks,
                one_by_one=is_ragged,
                segment=None if dealer.is_tcp else self._segment,
            )
            for rank, dealer in enumerate(dealers)
        ]
        for connection in self._connections:
            connection.ask_to_open()
        for connection in self._connections:
            self._wait(connection, lambda waiting: waiting.is_open, DataConnection.ask_to_open, repeat_s=REOPEN_S)

    def _account(self, *, is_new: bool) -> None:
        """Count each step for its new server rank, and have only those unsent that it does not know."""
        retention = self._retention
        # The other ranks have to find the new server, too.
        self._num_released = 0
        num_lost = 0
        for index in self._entered:
            connection = self._connection_of(index)
            connection.num_steps += 1
            if index in connection.known:
                # All that a new server knows is in a checkpoint.
                if is_new:
                    retention.durable.add(index)
                elif index in retention.unsent:
                    connection.keep(index, retention.unsent[index])
                retention.forget(index)
            elif index not in retention.unsent:
                num_lost += 1
        if num_lost and self.blocks:
            retention.forget_all()
            raise StepsLost(self._loss(num_lost))
        if retention.unsent:
            failpoint("client.before_resend")

    def _loss(self, num: int) -> str:
        window_mib = self.welcome.window_bytes / 2**20
        return (
            f"the study went back to its last checkpoint, which lacks {counted(num, 'time step')} of {self.who} that "
            f"this process no longer holds (client.window is {window_mib:g} MiB): a new attempt will produce them"
        )

    def _connection_of(self, index: int) -> DataConnection:
        """The connection over which a step has to go."""
        return self._connections[self._dealing.server_rank(self.welcome.simulation, index)]

    def _send_unsent(self, most_s: float = math.inf) -> bool:
        """Send what no connection has, each step once there is room; False: one has waited for long enough."""
        unsent = self._retention.unsent
        while unsent:
            index, steps = next(iter(unsent.items()))
            connection = self._connection_of(index)
            if not self._wait_for_room(connection, most_s):
                return False
            connection.send(index, steps.present, steps.arrays(index, self.blocks))
            self._retention.forget(index)
            # The steps that were released are the last of them.
            self._num_released = min(self._num_released, len(unsent))
        return True

    def _wait_for_room(self, connection: DataConnection, most_s: float = math.inf) -> bool:
        """Wait for credit, not much longer than `most_s` or what it may; whether there is some."""
        if not connection.has_room:
            # What this rank holds back for one server rank may be what the others wait for.
            self._flush()
            longest_s = min(most_s, self._longest_wait_s(connection))
            self._wait(
                connection, lambda waiting: waiting.has_room, DataConnection.ping, repeat_s=PING_S, most_s=longest_s
            )
        return connection.has_room

    def _flush(self) -> None:
        """Send the steps that wait to be packed together."""
        for connection in self._connections:
            connection.flush()

    def _end(self) -> None:
        """Say that all has been sent, and wait until it is settled."""
        self._flush()
        failpoint("client.before_end")
        for connection in self._connections:
            connection.end(len(self._entered))
        for connection in self._connections:
            self._wait(connection, lambda waiting: waiting.has_ended, DataConnection.ping, repeat_s=PING_S)
        failpoint("client.after_ended")

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
        assert self._transport is not None
        silence = SilenceTimer(timeout_s=self._silence_s, repeat_s=repeat_s, silent_s=connection.silent_s)
        while not done(connection) and not silence.has_lasted(most_s):
            if self._watch.newer_than(self._incarnation):
                raise _ConnectionLost
            if self._watch.was_touched():
                silence.heard()
            if silence.is_over:
                raise Unreachable(
                    f"{self.who} waits for {connection}: no word for {self._silence_s:g} s{connection.circumstance}"
                )
            slice_s = min(silence.slice_s, self._watch.slice_s)
            ready = self._transport.wait(slice_s)
            silence.listened(slice_s)
            for other in self._connections:
                if other.dealer in ready and other.take_answers() and other is connection:
                    silence.heard()
            self._check_connections()
            if silence.may_repeat():
                repeat(connection)
        connection.silent_s = silence.silent_s

    def _check_connections(self) -> None:
        for connection in self._connections:
            if connection.has_stopped:
                raise _StudyEnded(connection.stop_reason)
            if connection.stale and not self._watch.may_change:
                raise Refused(
                    f"{connection} was started again: {connection.stale}. {self.who} cannot find it any more, "
                    "since it was not given the path of a connection file"
                )
        if any(connection.is_lost for connection in self._connections):
            raise _ConnectionLost


def _incarnation_of(file: ConnectionFile, welcome: Welcome) -> int:
    """The incarnation of the server that welcomed us. It may be ahead of the file, but it is no news then."""
    return max(file.incarnation, welcome.incarnation)
