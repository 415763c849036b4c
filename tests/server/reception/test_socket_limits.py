"""How much ZeroMQ holds for a client that sends or reads as it likes: no more than we told it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from stream_server.messages.curve import KeyPair
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.sockets import MAX_CONTROL_MESSAGES, MAX_FRAME_BYTES, ReceiverSettings, Sockets

DEADLINE_S = 60.0
UNREAD = 4
MANY = 200
MIB = bytes(2**20)


@contextmanager
def connected(folder: Path) -> Iterator[tuple[Sockets, "zmq.Socket[bytes]"]]:
    """The sockets of a rank, and a client of it that holds next to nothing itself."""
    with ExitStack() as stack:
        settings = ReceiverSettings(ipc_folder=folder, host="here", address="127.0.0.1")
        sockets = Sockets(rank=1, max_unread=UNREAD, access=CurveAccess(KeyPair.make()), settings=settings)
        endpoints = sockets.open()
        stack.callback(sockets.close)
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        client = context.socket(zmq.DEALER)
        client.sndhwm = client.rcvhwm = 1
        client.connect(endpoints.data[0])
        yield sockets, client


def test_a_client_that_nobody_reads_can_send_no_more_than_its_window(tmp_path: Path) -> None:
    with connected(tmp_path) as (_, client):
        num_sent = 0
        while num_sent < MANY and client.poll(1000, zmq.POLLOUT):
            client.send(MIB)
            num_sent += 1
        assert UNREAD <= num_sent < UNREAD + 10


def test_no_more_than_so_many_answers_are_kept_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    with connected(tmp_path) as (sockets, client):
        client.send(b"here")
        assert sockets.wait(DEADLINE_S)
        [(peer, *_)] = sockets.data((), 1)
        for _ in range(MANY):
            sockets.send_data(peer, MIB)
        num_heard = 0
        while client.poll(200):
            client.recv(copy=False)
            num_heard += 1
        assert 0 < num_heard <= MAX_CONTROL_MESSAGES + 10


def test_a_client_that_sends_more_than_a_message_may_have_is_cut_off(tmp_path: Path) -> None:
    with connected(tmp_path) as (sockets, client):
        client.send(bytes(MAX_FRAME_BYTES))
        assert sockets.wait(DEADLINE_S)
        events = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        client.send(bytes(MAX_FRAME_BYTES + 1))
        assert events.poll(DEADLINE_S * 1000)
        assert recv_monitor_message(events)["event"] == zmq.EVENT_DISCONNECTED
        client.disable_monitor()
