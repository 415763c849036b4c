import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import MalformedMessage
from stream_server.launcher import link
from stream_server.launcher.sockets import Link, key_pair

PLAN = link.Plan(
    study="heat-1",
    epoch=0,
    output_dir="/runs/heat",
    connection={"control": ["ipc:///tmp/x"], "security": None},
    simulations=(link.Planned(simulation=0, parameters={"left": 1.5}), link.Planned(simulation=1, parameters={})),
)
TO_LAUNCHER = [
    link.Here(epoch=0),
    PLAN,
    link.Run(simulation=7, parameters={"left": 2.0}),
    link.Progress(simulation=7, attempt=2, received=3, blocked=True),
    link.Finished(simulation=7),
    link.Invalid(simulation=7, reason="diverged"),
    link.AttachRequest(token=1, simulation=None),
    link.Committed(generation=3, batches=70),
    link.Leaving(),
    link.StopAll(reason="done", grace_s=1.0),
]
TO_SERVER = [
    link.AskPlan(),
    link.Ready(),
    link.Attempt(simulation=7, attempt=1, public_key="k"),
    link.Attempt(simulation=8, attempt=0, public_key=None, attached=True),
    link.Leave(reason="stopped by SIGINT"),
    link.Failed(simulation=7, attempt=1, reason="crashed", log="/x/output.log"),
    link.GaveUp(simulation=7, attempts=3, reason="crashed", log="", redraw=True),
    link.Attached(token=1, simulation=7, attempt=0),
    link.NoneLeft(token=1, text="none", busy=False),
    link.TooMany(text="é\n"),
    link.Status(waiting=1, running=2, done=3, failed=4),
    link.HeldBack(text="no room"),
    link.Bye(),
]


@pytest.mark.parametrize("message", TO_LAUNCHER, ids=lambda message: type(message).__name__)
def test_what_goes_to_the_launcher_comes_back_from_its_frame(message: link.ToLauncher) -> None:
    assert link.to_launcher(link.encode(message)) == message


@pytest.mark.parametrize("message", TO_SERVER, ids=lambda message: type(message).__name__)
def test_what_goes_to_the_server_comes_back_from_its_frame(message: link.ToServer) -> None:
    assert link.to_server(link.encode(message)) == message


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xff", b"[]", b"3", b"{}", b'{"message": "Nonsense"}', b'{"message": "Run"}', b'{"message": []}', b'"x"'],
)
def test_a_frame_that_is_no_message_gives_one_typed_error(frame: bytes) -> None:
    for decode in (link.to_launcher, link.to_server):
        with pytest.raises(MalformedMessage):
            decode(frame)


@given(st.binary(max_size=50))
def test_any_bytes_give_a_message_or_one_typed_error(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        link.to_launcher(frame)


def test_key_pairs_are_z85_text_and_never_the_same() -> None:
    public, secret = key_pair()
    assert len(public) == len(secret) == 40
    assert key_pair() != (public, secret)


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{Path(folder) / 'link'}"


@pytest.fixture
def server() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        yield socket


def test_messages_pass_both_ways_in_order(address: str, server: zmq.Socket[bytes]) -> None:
    with Link(address) as launcher:
        server.connect(address)
        for message in TO_LAUNCHER:
            server.send(link.encode(message))
        received: list[link.ToLauncher] = []
        while len(received) < len(TO_LAUNCHER):
            launcher.wait(5.0)
            received += launcher.receive()
        for answer in TO_SERVER:
            launcher.send(answer)
        assert received == TO_LAUNCHER
        assert [link.to_server(server.recv()) for _ in TO_SERVER] == TO_SERVER


def test_what_is_sent_before_rank_0_spoke_is_dropped(address: str) -> None:
    with Link(address) as launcher:
        launcher.send(link.Ready())
        launcher.wait(0.0)
        assert launcher.receive() == []


def test_waiting_shows_what_else_can_be_read(address: str) -> None:
    readable, writable = os.pipe()
    with Link(address) as launcher:
        launcher.watch(readable)
        assert launcher.wait(0.0) == set()
        os.close(writable)
        assert launcher.wait(5.0) == {readable}
        launcher.ignore(readable)
        assert launcher.wait(0.0) == set()
    os.close(readable)


def heard(launcher: Link, socket: "zmq.Socket[bytes]", *messages: link.ToLauncher) -> list[link.ToLauncher]:
    """What the launcher makes of these messages, which are followed by one more of another peer."""
    for message in messages:
        socket.send(link.encode(message))
    received: list[link.ToLauncher] = []
    while len(received) < len(messages):
        if not launcher.wait(0.5):
            break
        received += launcher.receive()
    return received


def test_an_older_server_is_not_heard_any_more_once_a_newer_one_is_there(
    address: str, server: "zmq.Socket[bytes]"
) -> None:
    with Link(address) as launcher, zmq.Context() as context, context.socket(zmq.DEALER) as newer:
        newer.linger = 0
        server.connect(address)
        newer.connect(address)
        assert heard(launcher, server, link.Here(epoch=1)) == [link.Here(epoch=1)]
        assert heard(launcher, newer, link.Here(epoch=2)) == [link.Here(epoch=2)]
        assert heard(launcher, server, link.Here(epoch=1), link.Finished(simulation=0)) == []
        launcher.send(link.AskPlan())
        assert newer.poll(5000)
        assert not server.poll(0)


def test_a_server_that_is_gone_is_spoken_to_no_more(address: str, server: "zmq.Socket[bytes]") -> None:
    with Link(address) as launcher:
        server.connect(address)
        heard(launcher, server, link.Here(epoch=1))
        assert launcher.connected
        launcher.forget_peer()
        assert not launcher.connected
        assert heard(launcher, server, link.Finished(simulation=0)) == []
        assert heard(launcher, server, link.Here(epoch=1)) == [link.Here(epoch=1)]
