"""Who has the wrong key is told so within seconds, who has none mostly; the right one takes part. In Python and C."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils import z85

from stream_server.client_api import connect, hello
from stream_server.errors import MalformedMessage, Refused, Unreachable
from stream_server.messages import operator, wire
from stream_server.messages.client import Hello
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.curve import KeyPair
from stream_server.messages.operator import AskStatus
from stream_server.server.reception.access import CurveAccess
from tests.client_api.clients import SMALL, assert_has
from tests.fakes.server import FakeServer
from tests.native.native_client import NativeClient, built, client, library, program

__all__ = ["client", "library", "program"]

LIMIT_S = 5.0
TOLD = r"is not let into study heat/1 at tcp://\S+: the server does not know the key in the connection file, or wants"
# A server that wants a key and is shown none may close the connection before it has said so: then it is only silent.
SILENT = r"waits for study heat/1 at tcp://\S+: no word for 8 s\. .* is the connection file its newest\?"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(SMALL, num_ranks=1, transport="curve") as server:
        yield server


def wrong_key(server: FakeServer, what: str) -> ConnectionFile:
    """A connection file of this server that must not let anybody in."""
    security = server.connection.security
    assert security is not None
    stranger = KeyPair.make()
    if what == "none":
        return msgspec.structs.replace(server.connection, security=None)
    if what == "an older attempt's":
        server.access.allow(3, 0, stranger.public)
        server.access.allow(3, 1, KeyPair.make().public)
    changed = msgspec.structs.replace(security, client_public_key=stranger.public, client_secret_key=stranger.secret)
    return msgspec.structs.replace(server.connection, security=changed)


def timeout_s(what: str) -> float:
    """Short where silence may be all there is."""
    return 8 if what == "none" else 25


WRONG = ["another", "an older attempt's", "none"]


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_key_in_python(server: FakeServer, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hello.REFUSED_S + hello.REPEAT_S < LIMIT_S
    monkeypatch.setattr(hello, "REFUSED_S", 0.2)
    monkeypatch.setattr(hello, "REPEAT_S", 0.1)
    with pytest.raises((Refused, Unreachable) if what == "none" else Refused, match=f"{TOLD}|{SILENT}"):
        connect(wrong_key(server, what), timeout_s=timeout_s(what))
    assert server.hellos == []


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_key_in_c(server: FakeServer, what: str, client: NativeClient, tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    wrong_key(server, what).write(path)
    said = client.ask(f"connect 0 1 connection={path} timeout={timeout_s(what)}")
    assert re.match(f"error REFUSED: a simulation rank 0 {TOLD}", said) or (
        what == "none" and re.match(f"error UNREACHABLE: a simulation rank 0 {SILENT}", said)
    )
    assert server.hellos == []


def test_a_refusal_is_heard_that_comes_before_the_connection_is_known_to_have_begun(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_at_once = zmq.Socket.connect

    def connect_slowly(self: "zmq.Socket[bytes]", address: str) -> None:
        connect_at_once(self, address)
        time.sleep(0.3)

    monkeypatch.setattr(zmq.Socket, "connect", connect_slowly)
    with pytest.raises(Refused, match=TOLD):
        connect(wrong_key(server, "another"), timeout_s=15)


def test_such_a_refusal_is_heard_in_c(server: FakeServer, library: Path, tmp_path: Path) -> None:
    refused = built(library, tmp_path, "refused.c", "-Wl,--wrap=zmq_connect")
    path = tmp_path / "connection.json"
    wrong_key(server, "another").write(path)
    done = subprocess.run([str(refused), str(path), "15"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(rf"-\d+ a simulation rank 0 {TOLD}", done.stdout)


def test_the_right_key_in_c(server: FakeServer, client: NativeClient) -> None:
    assert client.connect(server) == "ok"
    assert client.send(*range(5)) == ["ok"] * 5
    assert client.ask("finish") == "ok"
    assert_has(server, 5)


def test_a_key_that_comes_late_is_waited_for(server: FakeServer, client: NativeClient) -> None:
    attaching, server.access.attaching = server.access.attaching, None
    answer = client.begin(f"connect 0 1 connection={server.path} timeout=60")
    server.do_now(lambda: None)
    server.access.attaching = attaching
    assert answer() == "ok"
    assert client.ask("finish") == "ok"


def test_a_key_speaks_its_own_language() -> None:
    keys, attaching, officer, old, new = (KeyPair.make() for _ in range(5))
    access = CurveAccess(keys, attaching=attaching.public, operator=officer.public)
    access.allow(3, 0, old.public)
    access.allow(3, 1, new.public)

    def request(pair: KeyPair) -> list[bytes]:
        return [b"1.0", b"7", b"stream", b"127.0.0.1", b"", b"CURVE", z85.decode(pair.public)]

    hello = Hello(study="s", simulation=3, attempt=1, rank=0, num_ranks=1)
    assert [access.answer(request(it))[2] for it in (new, officer, attaching, old)] == [b"200", b"200", b"200", b"400"]
    assert [it for it in (attaching, officer, old, keys) if not access.problem(it.public, hello)] == []
    assert [it for it in (attaching, new, old, keys) if access.is_operator(it.public)] == []
    assert access.problem(new.public, msgspec.structs.replace(hello, attempt=0)) != ""
    # Neither takes a message of the other for one of its own.
    with pytest.raises(MalformedMessage):
        operator.question(b"".join(wire.encode(hello)))
    with pytest.raises(MalformedMessage):
        wire.decode(operator.encode(AskStatus()))
