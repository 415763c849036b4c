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

PLAN = link.Plan(
    study="heat-1",
    epoch=0,
    output_dir="/runs/heat",
    connection={"control": ["ipc:///tmp/x"], "security": None},
    simulations=(link.Planned(simulation=0, parameters={"left": 1.5}), link.Planned(simulation=1, parameters={})),
)
TO_LAUNCHER = [
    PLAN,
    link.Run(simulation=7, parameters={"left": 2.0}),
    link.Progress(simulation=7, attempt=2, received=3, blocked=True),
    link.Finished(simulation=7),
    link.Invalid(simulation=7, reason="diverged"),
    link.AttachRequest(token=1, simulation=None),
    link.StopAll(reason="done", grace_s=1.0),
]
TO_SERVER = [
    link.Ready(),
    link.Attempt(simulation=7, attempt=1, public_key="k"),
    link.Failed(simulation=7, attempt=1, reason="crashed", log="/x/output.log"),
    link.GaveUp(simulation=7, attempts=3, reason="crashed", log="", redraw=True),
    link.Attached(token=1, simulation=7, attempt=0),
    link.NoneLeft(token=1, text="none", busy=False),
    link.TooMany(text="é\n"),
    link.Status(waiting=1, running=2, done=3, failed=4),
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
    public, secret = link.key_pair()
    assert len(public) == len(secret) == 40
    assert link.key_pair() != (public, secret)


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
    with link.Link(address) as launcher:
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
    with link.Link(address) as launcher:
        launcher.send(link.Ready())
        launcher.wait(0.0)
        assert launcher.receive() == []


def test_waiting_shows_which_other_file_can_be_read(address: str) -> None:
    readable, writable = os.pipe()
    with link.Link(address, others=(readable,)) as launcher:
        assert launcher.wait(0.0) == set()
        os.close(writable)
        assert launcher.wait(5.0) == {readable}
        launcher.ignore(readable)
        assert launcher.wait(0.0) == set()
    os.close(readable)
