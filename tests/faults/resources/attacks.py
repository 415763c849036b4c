"""Attacks of hostile or broken clients on the memory of a server, and how much of it each may take.

`num` says how long it goes on. Each returns when the server has dealt with it, or takes no more.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import zmq

from stream_server.messages import wire
from stream_server.messages.client import MAX_PART_BYTES, Ping
from stream_server.messages.connection_guard import MAX_STRANGERS_BYTES, MAX_UNFINISHED_BYTES
from stream_server.server.reception.sockets import MAX_CONTROL_BYTES, MAX_CONTROL_MESSAGES, MAX_FRAME_BYTES
from tests.fakes.hostile_client import HALF, HostileClient, data_of, drained
from tests.faults.resources.victim import Victim
from tests.support.timing import until

# Frees are not given back at once, and buffers of sockets are on both sides.
SLACK = 48 << 20
# What comes until the guard of connections looks and cuts: a tenth of a second at 600 MB/s.
REACTION = 60 << 20
# Gigabit Ethernet, for pieces of 1 MB.
PACE_S = 0.008
FRAME = os.urandom(MAX_PART_BYTES)
LARGEST = FRAME[:MAX_CONTROL_BYTES]
# ZMTP 3.1: signature, version, mechanism, as a client, filler; then the flags of a command with a size of 8 bytes.
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
LARGE_COMMAND = b"\x06"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """Something done to a server; `allowed` is by how many bytes its memory may grow."""

    name: str
    run: Callable[[HostileClient, int], None]
    allowed: Callable[[Victim], int] = lambda victim: SLACK


def unread(victim: Victim) -> int:
    """The bytes that one client may have in the queues of a rank that does not read."""
    plan = victim.plan
    return (plan.credit + MAX_CONTROL_MESSAGES) * MAX_PART_BYTES + SLACK


def junk(client: HostileClient, num: int) -> None:
    """The largest frames that a data socket takes, full of nonsense."""
    client.flood("d0", [FRAME], num * MAX_PART_BYTES)


def junk_in_parts(client: HostileClient, num: int) -> None:
    """Messages of many frames, none of which is ours."""
    client.flood("d0", [b"junk", *[FRAME[:1024]] * 1000], num << 20)


def too_large(client: HostileClient, num: int) -> None:
    """Frames beyond what is allowed, for which libzmq closes the connection."""
    for name, frame in (("d0", FRAME + b"."), ("c", LARGEST + b".")):
        for _ in range(num):
            client.flood(name, [frame], len(frame))


def control_messages(client: HostileClient, num: int) -> None:
    """The largest messages that a control socket takes."""
    client.flood("c", [LARGEST], num * MAX_CONTROL_BYTES)


def hellos_of_one(client: HostileClient, num: int) -> None:
    """Hello after Hello on one connection, and no answer is read."""
    frame = client.hello(simulation=1, attempt=7)
    client.flood("c", [frame], num * 100 * len(frame))


def hellos_of_many(client: HostileClient, num: int) -> None:
    """Each Hello on a connection of its own, for an attempt that will never come."""
    for _ in range(num):
        with ExitStack() as stack:
            sockets = [stack.enter_context(client.socket("c")) for _ in range(20)]
            for it in sockets:
                it.send(client.hello(simulation=1, attempt=7))
            for it in sockets:
                assert it.poll(20_000)


def pings(client: HostileClient, num: int) -> None:
    """Questions whose answers nobody reads."""
    (frame,) = wire.encode(Ping())
    client.flood("d0", [bytes(frame)], num * 100 * len(frame))


def notices(client: HostileClient, num: int) -> None:
    """Large messages to the socket where the ranks speak among themselves."""
    client.flood("p", [LARGEST], 4 * num * MAX_CONTROL_BYTES)


def beyond_the_credit(client: HostileClient, num: int) -> None:
    """A client that never waits for an acknowledgement, and never reads one."""
    welcome = client.seat(1)
    data, _ = client.open(welcome)
    with data:
        payload = bytes(8 * 65536)
        with suppress(zmq.Again):
            for number in range(num):
                data.send_multipart(data_of(welcome, number % 40, payload))
    client.withdraw(welcome)


def endless_halves(client: HostileClient, num: int) -> None:
    """Rank 0 of two, whose other rank never comes: no step is ever complete."""
    welcome = client.seat(2)
    data, _ = client.open(welcome, HALF, num_ranks=2)
    with data:
        payload = bytes(4 * 65536)
        for number in range(num):
            with suppress(zmq.Again):
                data.send_multipart(data_of(welcome, number % 40, payload))
            drained(data)
    client.withdraw(welcome)


def strangers(client: HostileClient, num: int) -> None:
    """Connections to a TCP port that say nothing, or nothing that ZeroMQ understands, and stay."""
    victim = client.victim
    before = victim.num_files
    with ExitStack() as stack:
        for number in range(num):
            it = stack.enter_context(socket.create_connection(victim.port))
            with suppress(OSError):
                it.sendall(FRAME[: (0, 3, 64, 4096)[number % 4]])
        until(lambda: victim.num_files > before)
        # libzmq lets go of those that have not shaken hands after five seconds.
        until(lambda: victim.num_files <= before + 4)


def unfinished_handshakes(client: HostileClient, num: int) -> None:
    """Connections that begin a frame as large as the data socket takes, in the place of a handshake."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(client.stranger()) for _ in range(num)]
        for it in sockets:
            it.sendall(CURVE_GREETING + LARGE_COMMAND + MAX_FRAME_BYTES.to_bytes(8, "big"))
        for _ in range(3):
            for it in sockets:
                # Who was cut cannot send any more.
                with suppress(OSError):
                    it.sendall(LARGEST)
                    time.sleep(PACE_S)
                    # A network is no faster because other programs take the cores.
                    until(lambda: client.victim.is_at_rest)


def a_message_of_many_frames(client: HostileClient, num: int) -> None:
    """One message of large frames, by whoever has the key: libzmq gives it to nobody before it is whole."""
    with client.with_key() as data:
        data.send(b"here I am")
        assert data.poll(20_000)
        data.recv()
        events = data.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        data.send_multipart([FRAME] * 2 * num)
        assert events.poll(20_000), "it was not cut off"
        data.disable_monitor()
        events.close()


UNHELD = (
    # First: later the allocator keeps what it had once given out, and all that ever came would count.
    Attack(name="unfinished handshakes", run=unfinished_handshakes, allowed=lambda _: MAX_STRANGERS_BYTES + SLACK),
    Attack(name="junk", run=junk, allowed=unread),
    Attack(name="junk in parts", run=junk_in_parts, allowed=unread),
    Attack(name="too large", run=too_large),
    Attack(
        name="control messages",
        run=control_messages,
        allowed=lambda _: MAX_CONTROL_MESSAGES * MAX_CONTROL_BYTES + SLACK,
    ),
    Attack(name="hellos of one", run=hellos_of_one),
    Attack(name="hellos of many", run=hellos_of_many),
    Attack(name="pings", run=pings),
    Attack(name="beyond the credit", run=beyond_the_credit, allowed=lambda it: it.plan.buffer_bytes + SLACK),
    Attack(name="endless halves", run=endless_halves, allowed=lambda it: it.plan.buffer_bytes + SLACK),
    Attack(name="strangers", run=strangers),
    Attack(
        name="a message of many frames",
        run=a_message_of_many_frames,
        allowed=lambda _: MAX_UNFINISHED_BYTES + REACTION + SLACK,
    ),
)
HELD = (
    Attack(name="junk, held", run=junk, allowed=unread),
    Attack(
        name="control messages, held",
        run=control_messages,
        allowed=lambda _: MAX_CONTROL_MESSAGES * MAX_CONTROL_BYTES + SLACK,
    ),
    Attack(name="notices, held", run=notices, allowed=lambda _: MAX_CONTROL_MESSAGES * MAX_CONTROL_BYTES + SLACK),
    Attack(name="pings, held", run=pings),
)
