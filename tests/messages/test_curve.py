"""Nobody is admitted over TCP while no handler can answer who may connect."""

from contextlib import ExitStack

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from stream_server.messages.curve import ZAP_ADDRESS, KeyPair, secure_server_socket
from stream_server.server.reception.access import CurveAccess

DEADLINE_MS = 60_000
LET_IN = zmq.EVENT_HANDSHAKE_SUCCEEDED
TURNED_AWAY = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def first_outcome(access: CurveAccess, key: KeyPair, *, answers: bool) -> int:
    """The event that ends the first handshake of the holder of `key` with a guarded socket."""
    with ExitStack() as stack:
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        zap = context.socket(zmq.REP)
        if answers:
            zap.bind(ZAP_ADDRESS)
        server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        stack.callback(server.disable_monitor)
        outcomes = server.get_monitor_socket(LET_IN | TURNED_AWAY)
        secure_server_socket(server, access.server)
        client.curve_serverkey = access.server.public.encode()
        client.curve_publickey, client.curve_secretkey = key.public.encode(), key.secret.encode()
        client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
        poller = zmq.Poller()
        for socket in (zap, outcomes):
            poller.register(socket, zmq.POLLIN)
        while ready := dict(poller.poll(DEADLINE_MS)):
            if outcomes in ready:
                return int(recv_monitor_message(outcomes)["event"])
            zap.send_multipart(access.answer(zap.recv_multipart()))
        raise TimeoutError("neither let in nor turned away")


@pytest.mark.parametrize(("answers", "outcome"), [(True, LET_IN), (False, TURNED_AWAY)])
def test_nobody_is_let_in_while_nobody_answers_who_may_come(answers: bool, outcome: int) -> None:
    keys, client = KeyPair.make(), KeyPair.make()
    access = CurveAccess(keys)
    access.allow(0, 0, client.public)
    assert first_outcome(access, client, answers=answers) & outcome


def test_a_key_that_is_not_on_the_list_is_turned_away() -> None:
    assert first_outcome(CurveAccess(KeyPair.make()), KeyPair.make(), answers=True) & TURNED_AWAY
