"""The conversation with rank 0's control socket: one question, repeated until it is answered."""

from stream_server.client_api.connection import ConnectionFile
from stream_server.client_api.messages import Hello, Invalidate, Message, Reason, Refusal
from stream_server.client_api.patience import Patience
from stream_server.client_api.transport import Transport, new_name
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Unreachable

REPEAT_S = 1.0


def ask(question: Hello | Invalidate, watch: ConnectionWatch, *, who: str, timeout_s: float) -> Message:
    """The answer to a question that may safely be asked twice. A server that is BUSY is asked again later.

    A server that is started again meanwhile is asked at its new place, by the same name: what was given to this client
    in an answer that was lost is given to it again.

    Raises:
        Unreachable: no word came for `timeout_s`.
        Refused: the answer is in another version of the protocol.
    """
    patience = Patience(timeout_s=timeout_s, repeat_s=REPEAT_S)
    name = new_name()
    while True:
        file = watch.file
        transport = Transport(host=file.host, security=file.security)
        try:
            answer = _ask(transport, question, watch, file, patience, name)
        finally:
            transport.close(linger=False)
        if answer is not None:
            return answer
        if patience.is_over:
            raise Unreachable(
                f"{who} waits for study {file.study} at {' and '.join(file.control)}: no word for {timeout_s:g} s. "
                "Is the study still running, and is the connection file its newest?"
            )


def _ask(
    transport: Transport,
    question: Hello | Invalidate,
    watch: ConnectionWatch,
    file: ConnectionFile,
    patience: Patience,
    name: bytes,
) -> Message | None:
    """The answer; None if none came in time, the connection was lost, or there is a newer connection file.

    A new server at an old address is no one to talk to: the file will tell of it, if it can.
    """
    dealer = transport.connect(file.control, name)
    dealer.send(question)
    while not patience.is_over and not dealer.is_lost:
        if watch.newer_than(file.epoch):
            patience.heard()
            return None
        slice_s = min(patience.slice_s, watch.slice_s)
        transport.wait(slice_s)
        patience.listened(slice_s)
        while (answer := dealer.receive()) is not None:
            if isinstance(answer, Refusal) and answer.reason is Reason.STALE_EPOCH and watch.may_change:
                continue
            patience.heard()
            if not (isinstance(answer, Refusal) and answer.reason is Reason.BUSY):
                return answer
        if patience.may_repeat():
            dealer.send(question)
    return None
