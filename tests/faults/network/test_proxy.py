"""The proxy breaks connections in just the way it is told: without that, no test behind it would show anything."""

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.faults.network.faults import Close, Fault, Flip, HalfOpen, Reset, Silence, Slow, Way
from tests.faults.network.proxy import LOOPBACK, Proxy

DEADLINE_S = 60.0
SENT = random.Random(0).randbytes(5000)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The two ends of a connection through a proxy."""

    client: socket.socket
    server: socket.socket
    proxy: Proxy
    connect: Callable[[], tuple[socket.socket, socket.socket]]

    def of(self, way: Way) -> tuple[socket.socket, socket.socket]:
        """The sending and the receiving socket of this direction."""
        return (self.client, self.server) if way is Way.UP else (self.server, self.client)


@contextmanager
def ends(course: Sequence[Fault]) -> Iterator[Ends]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        listener.settimeout(DEADLINE_S)
        proxy = stack.enter_context(Proxy(f"tcp://{LOOPBACK}:{listener.getsockname()[1]}", course))

        def connect() -> tuple[socket.socket, socket.socket]:
            host, port = proxy.address.removeprefix("tcp://").split(":")
            client = stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
            server = stack.enter_context(listener.accept()[0])
            server.settimeout(DEADLINE_S)
            return client, server

        client, server = connect()
        yield Ends(client=client, server=server, proxy=proxy, connect=connect)


def receive(end: socket.socket, most: int = len(SENT)) -> bytes:
    """Receive until there are so many bytes, or none will follow."""
    got = b""
    while len(got) < most and (data := end.recv(most - len(got))):
        got += data
    return got


def is_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) is None
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("slow", [Slow(), Slow(piece_bytes=1), Slow(delay_s=0.001, jitter_s=0.001, bytes_per_s=1e6)])
def test_what_is_slow_comes_as_it_was_sent(way: Way, slow: Slow) -> None:
    with ends([slow]) as net:
        sender, receiver = net.of(way)
        sender.sendall(SENT)
        assert receive(receiver) == SENT
        assert net.proxy.struck["Slow"] == (slow != Slow())


def test_every_byte_that_comes_alone_is_a_piece_of_its_own() -> None:
    with ends([Slow(piece_bytes=1, delay_s=0.001)]) as net:
        net.client.sendall(SENT[:50])
        assert net.server.recv(50) == SENT[:1]


@pytest.mark.parametrize("way", Way)
def test_a_reset_lets_so_many_bytes_through_and_both_ends_know(way: Way) -> None:
    with ends([Reset(after_bytes=3000, way=way)]) as net:
        sender, receiver = net.of(way)
        sender.sendall(SENT[:3000])
        assert receive(receiver, 3000) == SENT[:3000]
        sender.sendall(SENT[3000:])
        assert is_reset(receiver)
        assert is_reset(sender)
        assert net.proxy.struck == {"Reset": 1}


@pytest.mark.parametrize("way", Way)
def test_an_orderly_close_ends_behind_so_many_bytes(way: Way) -> None:
    with ends([Close(after_bytes=3000, way=way)]) as net:
        sender, receiver = net.of(way)
        sender.sendall(SENT)
        assert receive(receiver) == SENT[:3000]


@pytest.mark.parametrize("way", Way)
def test_silence_swallows_one_way_only_until_it_heals(way: Way) -> None:
    with ends([Silence(after_bytes=3000, way=way, heals_s=0.2)]) as net:
        sender, receiver = net.of(way)
        sender.sendall(SENT)
        assert receive(receiver, 3000) == SENT[:3000]
        receiver.sendall(SENT)
        assert receive(sender) == SENT
        assert is_reset(receiver)
        assert is_reset(sender)


def test_a_half_open_connection_is_known_to_the_server_first() -> None:
    with ends([HalfOpen(after_bytes=3000, heals_s=0.2)]) as net:
        net.client.sendall(SENT[:3000])
        assert receive(net.server, 3000) == SENT[:3000]
        net.client.sendall(SENT[3000:])
        assert is_reset(net.server)
        # Nobody tells the client: it can still send.
        net.client.sendall(SENT)
        assert is_reset(net.client)


@pytest.mark.parametrize("way", Way)
def test_a_flip_changes_one_bit(way: Way) -> None:
    with ends([Flip(at_byte=3000, bit=5, way=way)]) as net:
        sender, receiver = net.of(way)
        sender.sendall(SENT)
        changed = receive(receiver)
        assert changed[3000] == SENT[3000] ^ 32
        assert changed[:3000] + changed[3001:] == SENT[:3000] + SENT[3001:]


def test_a_network_heals_when_its_course_is_over() -> None:
    with ends([Reset(after_bytes=10)]) as net:
        net.client.sendall(SENT)
        assert is_reset(net.client)
        client, server = net.connect()
        client.sendall(SENT)
        assert receive(server) == SENT


def test_at_first_nobody_is_let_in() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with Proxy(f"tcp://{LOOPBACK}:{port}", refuses_s=1.0) as proxy:
            address = LOOPBACK, int(proxy.address.rpartition(":")[2])
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            while True:
                try:
                    socket.create_connection(address).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            assert proxy.struck == {"Refusal": 1}
