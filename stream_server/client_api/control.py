"""The conversation with rank 0's control socket: one question, repeated until it is answered."""

from stream_server.client_api.connection import ConnectionFile
from stream_server.client_api.messages import Hello, Invalidate, Message, Reason, Refusal
from stream_server.client_api.patience import Patience
from stream_server.client_api.transport import Transport
from stream_server.errors import Unreachable

REPEAT_S = 1.0


def ask(question: Hello | Invalidate, connection: ConnectionFile, *, who: str, timeout_s: float) -> Message:
    """The answer to a question that may safely be asked twice. A server that is BUSY is asked again later.

    Raises:
        Unreachable: no word came for `timeout_s`.
        Refused: the answer is in another version of the protocol.
    """
    transport = Transport(host=connection.host, security=connection.security)
    try:
        return _ask(transport, question, connection, who=who, timeout_s=timeout_s)
    finally:
        transport.close(linger=False)


def _ask(
    transport: Transport, question: Hello | Invalidate, connection: ConnectionFile, *, who: str, timeout_s: float
) -> Message:
    patience = Patience(timeout_s=timeout_s, repeat_s=REPEAT_S)
    dealer = transport.connect(connection.control)
    dealer.send(question)
    while not patience.is_over:
        transport.wait(patience.slice_s)
        while (answer := dealer.receive()) is not None:
            patience.heard()
            if not (isinstance(answer, Refusal) and answer.reason is Reason.BUSY):
                return answer
        if patience.may_repeat():
            dealer.send(question)
    raise Unreachable(
        f"{who} waits for study {connection.study} at {dealer.address}: no word for {timeout_s:g} s. "
        "Is the study still running, and is the connection file its newest?"
    )
