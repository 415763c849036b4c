import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import MalformedMessage
from stream_server.launcher.simulations.remote_access import RemoteAccess
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.messages import launcher_link
from stream_server.messages.curve import KeyPair, secure_peer_socket
from tests.support.connections import NOWHERE

PLAN = launcher_link.Plan(
    study="heat-1",
    incarnation=0,
    output_dir="/runs/heat",
    connection=NOWHERE,
    simulations=(
        launcher_link.Planned(simulation=0, parameters={"left": 1.5}),
        launcher_link.Planned(simulation=1, parameters={}),
    ),
)
TO_LAUNCHER = [
    launcher_link.Rank0Alive(incarnation=0),
    PLAN,
    launcher_link.AddSimulation(simulation=7, parameters={"left": 2.0}),
    launcher_link.ProgressReport(simulation=7, attempt=2, received=3, blocked=True),
    launcher_link.Finished(simulation=7),
    launcher_link.Invalid(simulation=7, reason="diverged"),
    launcher_link.AttachRequest(token=1, simulation=None),
    launcher_link.Committed(checkpoint=3, batches=70),
    launcher_link.Leaving(),
    launcher_link.StopSimulations(reason="done", grace_s=1.0),
    launcher_link.FinishSimulations(reason="enough"),
    launcher_link.Stopping(reason="stopped"),
]
TO_SERVER = [
    launcher_link.AskPlan(),
    launcher_link.PlanAccepted(),
    launcher_link.Attempt(simulation=7, attempt=1, public_key="k"),
    launcher_link.Attempt(simulation=8, attempt=0, public_key=None, attached=True),
    launcher_link.Leave(reason="stopped by SIGINT"),
    launcher_link.Failed(simulation=7, attempt=1, reason="crashed", log="/x/output.log"),
    launcher_link.FailedLater(simulation=7, attempt=1, reason="crashed", log="/x/output.log"),
    launcher_link.GaveUp(simulation=7, attempts=3, reason="crashed", log="", redraw=True),
    launcher_link.Dropped(simulations=(1, 2), reason="enough"),
    launcher_link.Attached(token=1, simulation=7, attempt=0),
    launcher_link.NoneLeft(token=1, text="none", busy=False),
    launcher_link.TooMany(text="é\n", simulation=7, attempt=0),
    launcher_link.Queued(simulations=(1, 2), waits_for=None),
    launcher_link.Status(waiting=1, running=2, done=3, failed=4),
    launcher_link.HeldBack(text="no room"),
    launcher_link.LauncherDone(),
]


@pytest.mark.parametrize("message", TO_LAUNCHER, ids=lambda message: type(message).__name__)
def test_what_goes_to_the_launcher_comes_back_from_its_frame(message: launcher_link.ToLauncher) -> None:
    assert launcher_link.to_launcher(launcher_link.encode(message)) == message


@pytest.mark.parametrize("message", TO_SERVER, ids=lambda message: type(message).__name__)
def test_what_goes_to_the_server_comes_back_from_its_frame(message: launcher_link.ToServer) -> None:
    assert launcher_link.to_server(launcher_link.encode(message)) == message


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"message": "Nonsense"}',
        b'{"message": "AddSimulation"}',
        b'{"message": []}',
        b'"x"',
    ],
)
def test_a_frame_that_is_no_message_gives_one_typed_error(frame: bytes) -> None:
    for decode in (launcher_link.to_launcher, launcher_link.to_server):
        with pytest.raises(MalformedMessage):
            decode(frame)


@given(st.binary(max_size=50))
def test_any_bytes_give_a_message_or_one_typed_error(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        launcher_link.to_launcher(frame)


def test_key_pairs_are_z85_text_and_never_the_same() -> None:
    keys = KeyPair.make()
    assert len(keys.public) == len(keys.secret) == 40
    assert KeyPair.make() != keys


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
    with ServerConnection(address) as launcher:
        server.connect(address)
        for message in TO_LAUNCHER:
            server.send(launcher_link.encode(message))
        received: list[launcher_link.ToLauncher] = []
        while len(received) < len(TO_LAUNCHER):
            launcher.wait(5.0)
            received += launcher.receive()
        for answer in TO_SERVER:
            launcher.send(answer)
        assert received == TO_LAUNCHER
        assert [launcher_link.to_server(server.recv()) for _ in TO_SERVER] == TO_SERVER


def test_what_is_sent_before_rank_0_spoke_is_dropped(address: str) -> None:
    with ServerConnection(address) as launcher:
        launcher.send(launcher_link.PlanAccepted())
        launcher.wait(0.0)
        assert launcher.receive() == []


def test_waiting_shows_what_else_can_be_read(address: str) -> None:
    readable, writable = os.pipe()
    with ServerConnection(address) as launcher:
        launcher.watch(readable)
        assert launcher.wait(0.0) == set()
        os.close(writable)
        assert launcher.wait(5.0) == {readable}
        launcher.ignore(readable)
        assert launcher.wait(0.0) == set()
    os.close(readable)


def heard(
    launcher: ServerConnection, socket: "zmq.Socket[bytes]", *messages: launcher_link.ToLauncher
) -> list[launcher_link.ToLauncher]:
    """The messages that the launcher accepts of these, which are followed by one more of another peer."""
    for message in messages:
        socket.send(launcher_link.encode(message))
    received: list[launcher_link.ToLauncher] = []
    while len(received) < len(messages):
        if not launcher.wait(0.5):
            break
        received += launcher.receive()
    return received


def test_an_older_server_is_not_heard_any_more_once_a_newer_one_is_there(
    address: str, server: "zmq.Socket[bytes]"
) -> None:
    with ServerConnection(address) as launcher, zmq.Context() as context, context.socket(zmq.DEALER) as newer:
        newer.linger = 0
        server.connect(address)
        newer.connect(address)
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=1)) == [
            launcher_link.Rank0Alive(incarnation=1)
        ]
        assert heard(launcher, newer, launcher_link.Rank0Alive(incarnation=2)) == [
            launcher_link.Rank0Alive(incarnation=2)
        ]
        assert (
            heard(launcher, server, launcher_link.Rank0Alive(incarnation=1), launcher_link.Finished(simulation=0)) == []
        )
        launcher.send(launcher_link.AskPlan())
        assert newer.poll(5000)
        assert not server.poll(0)


def test_a_server_that_is_gone_is_spoken_to_no_more(address: str, server: "zmq.Socket[bytes]") -> None:
    with ServerConnection(address) as launcher:
        server.connect(address)
        heard(launcher, server, launcher_link.Rank0Alive(incarnation=1))
        assert launcher.connected
        launcher.forget_peer()
        assert not launcher.connected
        assert heard(launcher, server, launcher_link.Finished(simulation=0)) == []
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=1)) == []
        launcher.forget_peer()
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=2)) == [
            launcher_link.Rank0Alive(incarnation=2)
        ]


def test_a_rank_0_that_comes_over_another_connection_was_interrupted_and_a_new_one_was_not(
    address: str, server: "zmq.Socket[bytes]"
) -> None:
    with ServerConnection(address) as launcher, zmq.Context() as context, context.socket(zmq.DEALER) as again:
        again.linger = 0
        server.connect(address)
        again.connect(address)
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=1), launcher_link.Rank0Alive(incarnation=1))
        assert not launcher.was_interrupted
        assert heard(launcher, again, launcher_link.Rank0Alive(incarnation=2))
        assert not launcher.was_interrupted
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=2))
        assert launcher.was_interrupted


def test_rank_0_on_another_node_is_heard_with_the_keys_of_the_study_only(
    address: str, server: "zmq.Socket[bytes]"
) -> None:
    access = RemoteAccess(address="127.0.0.1", ports=None, keys=KeyPair.make(), max_connections=8)
    with ServerConnection(address, access) as launcher, zmq.Context() as context:
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            # It has read the public key somewhere.
            own = KeyPair.make()
            stranger.curve_serverkey = access.keys.public.encode()
            stranger.curve_publickey, stranger.curve_secretkey = own.public.encode(), own.secret.encode()
            stranger.connect(launcher.endpoint)
            assert heard(launcher, stranger, launcher_link.Rank0Alive(incarnation=1)) == []
        secure_peer_socket(server, access.keys)
        server.connect(launcher.endpoint)
        assert heard(launcher, server, launcher_link.Rank0Alive(incarnation=1)) == [
            launcher_link.Rank0Alive(incarnation=1)
        ]
