"""What one client rank tells the study, over all starts of the server and all losses of a connection."""

import contextlib
import math
from collections.abc import Sequence

import numpy as np

from stream_server.client_api.control import ask
from stream_server.client_api.data_connection import DataConnection
from stream_server.client_api.entered import Entered
from stream_server.client_api.messages import Block, Hello, Stop, Welcome
from stream_server.client_api.retention import Retention, Steps
from stream_server.client_api.session import Session, SessionOver, StudyEnded, epoch_of
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, SimulationError, StepsLost
from stream_server.failpoints import failpoint

RELEASE_S = 1.0


class Conversation:
    """Sends steps to the server, and again to one that was started again, or has lost them, and does not know them.

    It begins with the first step, or with the end if there is none. `has_stopped` says that the study has ended,
    `stop_reason` why, as far as the server told.
    `hello` is said to each new server; `welcome` is what the last one answered.

    Room on the server may depend on the other ranks of a parallel simulation. One of them may have sent into a
    connection that was lost at that moment: it does not know yet, and perhaps waits for this rank to go on. So a step
    that has waited for RELEASE_S is kept to be sent later, as long as no more of them are kept than the credit.

    Raises, from `send` and `finish`:
        Refused, Unreachable: as for a `Session`.
        StepsLost: a new server misses a step that is retained no longer.
    """

    def __init__(
        self,
        watch: ConnectionWatch,
        hello: Hello,
        welcome: Welcome,
        blocks: Sequence[Block],
        *,
        silence_s: float,
    ) -> None:
        self.has_stopped = False
        self.stop_reason = ""
        self._watch = watch
        self._hello = hello
        self.welcome = welcome
        self._epoch = epoch_of(watch.file, welcome)
        self._blocks = blocks
        self._silence_s = silence_s
        self._who = f"simulation {welcome.simulation} rank {hello.rank}"
        self._entered = Entered()
        self._retention = Retention(window_bytes=welcome.window_bytes)
        self._session: Session | None = None
        # The connection file is looked at between messages, not between the steps of one.
        self._has_sent = False
        self._num_released = 0

    def send(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Send a step, now or together with the next ones; blocks while there is no credit, or for RELEASE_S."""
        while not self.has_stopped:
            try:
                session = self._session
                if session is None or self._has_sent:
                    session = self._current_session()
                connection = session.connection(index)
                is_wanted = bool(arrays) and index not in connection.known
                may_go = self._send_unsent(session, math.inf if is_wanted else 0.0)
                if may_go and is_wanted:
                    may_go = session.wait_for_room(connection, self._longest_wait_s(connection))
                if connection.is_lost:
                    raise SessionOver
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
            except SessionOver:
                self.close()
            except StudyEnded as ended:
                self._stop(str(ended))

    def finish(self) -> None:
        """Wait until every step is settled on the server."""
        while not self.has_stopped:
            try:
                session = self._current_session()
                while not self._send_unsent(session):
                    pass
                session.end()
                return
            except SessionOver:
                self.close()
            except StudyEnded as ended:
                self._stop(str(ended))

    def interrupt(self) -> None:
        """Go on without the server: `keep` what would be sent, until `may_resume` and then `send` or `finish`."""
        self._set_aside()
        self._retention.unsent_may_go = True

    def keep(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Keep a step while interrupted; the oldest ones go when the window is full."""
        if self._entered.add(index) and arrays:
            self._retain(index, present, arrays)

    def may_resume(self, *, look_now: bool = False) -> bool:
        """Whether the server was started again since it was spoken to."""
        return self._watch.newer_than(self._epoch, look_now=look_now)

    def close(self) -> None:
        """Leave without a word."""
        if self._session is not None:
            self._session.close(linger=False)
            self._session = None

    def abandon(self) -> None:
        """Leave, but let what was sent go out for a moment."""
        if self._session is not None:
            with contextlib.suppress(SimulationError):
                self._session.flush()
            self._session.close(linger=True)
            self._session = None

    def _retain(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        payload = [[memoryview(array.tobytes())] for array in arrays]
        self._retention.keep(index, Steps(range(index, index + 1), present, payload))

    def _longest_wait_s(self, connection: DataConnection) -> float:
        may_keep = self._hello.num_ranks > 1 and self._num_released < connection.credit
        return RELEASE_S if may_keep else math.inf

    def _stop(self, reason: str) -> None:
        self.has_stopped, self.stop_reason = True, reason

    def _current_session(self) -> Session:
        if self._session is None or self._watch.newer_than(self._epoch):
            return self._new_session()
        return self._session

    def _new_session(self) -> Session:
        """Speak to the newest server, and let it have all that it does not have."""
        while True:
            self._set_aside()
            is_new = self._watch.newer_than(self._epoch)
            if is_new:
                self._say_hello()
            self._session = Session(
                self._watch, self._hello, self.welcome, self._blocks, self._retention, silence_s=self._silence_s
            )
            try:
                self._session.open()
                failpoint("client.after_opened")
                self._account(self._session, is_new=is_new)
                return self._session
            except SessionOver:
                continue

    def _set_aside(self) -> None:
        """Leave the server, if there is one, with all that it may not have."""
        self.close()
        self._retention.unsent_may_go = False
        self._retention.set_aside(self._entered)

    def _say_hello(self) -> None:
        failpoint("client.before_reconnect")
        # A server that does not even answer is not tried again, only the next one.
        self._epoch = self._watch.file.epoch
        answer = ask(self._hello, self._watch, who=self._who, timeout_s=self._silence_s)
        if isinstance(answer, Stop):
            raise StudyEnded(answer.text)
        if not isinstance(answer, Welcome):
            text = getattr(answer, "text", answer)
            raise Refused(f"{self._who} cannot go on in study {self.welcome.study}, which was started again: {text}")
        self.welcome = answer
        self._epoch = epoch_of(self._watch.file, answer)

    def _account(self, session: Session, *, is_new: bool) -> None:
        """Count each step for its new server rank, and have only those unsent that are not known there."""
        retention = self._retention
        # The other ranks have to find the new server, too.
        self._num_released = 0
        num_lost = 0
        for index in self._entered:
            connection = session.connection(index)
            connection.num_steps += 1
            if index in connection.known:
                # All that a new server knows is in a checkpoint.
                if not is_new and index in retention.unsent:
                    connection.keep(index, retention.unsent[index])
                retention.forget(index)
            elif index not in retention.unsent:
                num_lost += 1
        if num_lost and self._blocks:
            retention.forget_all()
            raise StepsLost(self._loss(num_lost))
        if retention.unsent:
            failpoint("client.before_resend")

    def _send_unsent(self, session: Session, most_s: float = math.inf) -> bool:
        """Send what no connection has, each step once there is room; False: one has waited for long enough."""
        unsent = self._retention.unsent
        while unsent:
            index, steps = next(iter(unsent.items()))
            connection = session.connection(index)
            if not session.wait_for_room(connection, min(most_s, self._longest_wait_s(connection))):
                return False
            connection.send(index, steps.present, steps.arrays(index, self._blocks))
            self._retention.forget(index)
            # The steps that were released are the last of them.
            self._num_released = min(self._num_released, len(unsent))
        return True

    def _loss(self, num: int) -> str:
        window_mib = self.welcome.window_bytes / 2**20
        return (
            f"the study went back to its last checkpoint, where {num} time steps of {self._who} are missing which this "
            f"process no longer holds (client.window is {window_mib:g} MiB): a new attempt will produce them"
        )
