"""The handshake with the server: one question to rank 0's control socket, repeated until it is answered."""

import math
import time

from stream_server.client_api.transport import Transport, new_name
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, Unreachable
from stream_server.messages.client import Hello, Invalidate, Message, Reason, Refusal
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.tcp import unreached_advice

REPEAT_S = 1.0
# A server that has just begun may learn of a key a moment later.
REFUSED_S = 3.0
# A busy machine may keep a process waiting for less than that.
OVERSLEPT_S = 1.0


class SilenceTimer:
    """Measures the server's silence during one wait, and when the question must be asked again.

    The silence may have lasted for `silent_s` before. That the launcher says that the next server will come ends it.
    A server that is slow, but answers, is waited for without limit. Time in which this process itself was stopped is
    no silence of the server.
    """

    def __init__(self, *, timeout_s: float, repeat_s: float, silent_s: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._repeat_s = repeat_s
        self._began = self._asked = self._listened = time.monotonic()
        self._heard = self._began - silent_s
        self._refused = math.inf

    @property
    def is_over(self) -> bool:
        """The silence has lasted `timeout_s` when the last turn of listening ended."""
        return self.silent_s >= self._timeout_s

    @property
    def silent_s(self) -> float:
        """Length of the silence at the end of the last turn."""
        return self._listened - self._heard

    @property
    def slice_s(self) -> float:
        """Time to wait before `is_over` and `may_repeat` are looked at again."""
        return min(self._asked + self._repeat_s, self._heard + self._timeout_s) - time.monotonic()

    def has_lasted(self, most_s: float) -> bool:
        """Whether the wait has lasted for `most_s`."""
        return time.monotonic() - self._began >= most_s

    def listened(self, most_s: float) -> None:
        """A turn of listening is over, for which `most_s` were meant."""
        now = time.monotonic()
        overslept_s = now - self._listened - max(0.0, most_s)
        if overslept_s > OVERSLEPT_S:
            self._heard += overslept_s
        self._listened = now

    def heard(self) -> None:
        """The server said something."""
        self._heard = time.monotonic()

    def refused(self) -> bool:
        """The server refuses the key; whether it has done so for a while."""
        now = time.monotonic()
        self._refused = min(self._refused, now)
        return now - self._refused >= REFUSED_S

    def may_repeat(self) -> bool:
        """Whether it is time to ask again; if so, the next time is `repeat_s` later."""
        now = time.monotonic()
        if now - self._asked < self._repeat_s:
            return False
        self._asked = now
        return True


def ask(question: Hello | Invalidate, watch: ConnectionWatch, *, who: str, timeout_s: float) -> Message:
    """The answer to a question that may safely be asked twice. A server that is BUSY is asked again later.

    A server that is started again meanwhile is asked at its new place, by the same name: what was given to this client
    in an answer that was lost is given to it again.

    Raises:
        Unreachable: no word came for `timeout_s`.
        Refused: the answer is in another version of the protocol, or the server refuses the key.
    """
    silence = SilenceTimer(timeout_s=timeout_s, repeat_s=REPEAT_S)
    name = new_name()
    while True:
        file = watch.file
        transport = Transport(host=file.host, security=file.security)
        try:
            answer = _ask(transport, question, watch, file, silence, name, who)
        finally:
            transport.close(linger=False)
        if answer is not None:
            return answer
        if silence.is_over:
            raise Unreachable(
                f"{who} waits for study {file.study} at {' and '.join(file.control)}: no word for {timeout_s:g} s. "
                "Is the study still running, and is the connection file its newest?"
                f"{'' if transport.is_same_node else unreached_advice()}"
            )


def _ask(
    transport: Transport,
    question: Hello | Invalidate,
    watch: ConnectionWatch,
    file: ConnectionFile,
    silence: SilenceTimer,
    name: bytes,
    who: str,
) -> Message | None:
    """The answer; None if none came in time, the connection was lost, or there is a newer connection file.

    A new server at an old address is no one to talk to: the file will tell of it, if it can.
    """
    dealer = transport.connect(file.control, name, heeds_refusals=True)
    dealer.send(question)
    while not silence.is_over and not dealer.is_lost:
        if watch.newer_than(file.incarnation):
            silence.heard()
            return None
        if watch.was_touched():
            silence.heard()
        slice_s = min(silence.slice_s, watch.slice_s)
        transport.wait(slice_s)
        silence.listened(slice_s)
        while (answer := dealer.receive()) is not None:
            if isinstance(answer, Refusal) and answer.reason is Reason.STALE_INCARNATION and watch.may_change:
                continue
            silence.heard()
            if not (isinstance(answer, Refusal) and answer.reason is Reason.BUSY):
                return answer
        if dealer.is_refused and silence.refused():
            raise Refused(
                f"{who} is not let into study {file.study} at {dealer.address}: the server does not know the key in "
                "the connection file, or wants one and there is none. Is the file the newest, and is there no newer "
                "attempt?"
            )
        if silence.may_repeat():
            if dealer.is_refused:
                return None
            dealer.send(question)
    return None
