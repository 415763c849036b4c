"""A stranger who makes the folder of a dead server anew gets no data, and nobody takes parameters from him."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from stream_server.client_api import connect
from stream_server.errors import ConfigError, Unreachable
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.ipc import PrivateIpcPaths
from tests.fakes.server import FakeServer
from tests.native.native_client import NativeClient, client, library, program
from tests.security.stranger import Stranger

__all__ = ["client", "library", "program"]

# Makes a folder like that of a server, and counts who connects there, until its input ends.
IMPERSONATE = """
folder, names = sys.argv[1], sys.argv[2:]
os.mkdir(folder)
poller, sockets, num = select.poll(), {}, 0
for name in names:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, name))
    listener.listen()
    os.chmod(os.path.join(folder, name), 0o777)
    poller.register(listener, select.POLLIN)
    sockets[listener.fileno()] = listener
poller.register(0, select.POLLIN)
os.chmod(folder, 0o755)
print("ready", flush=True)
while True:
    ready = [descriptor for descriptor, _ in poller.poll()]
    for descriptor in ready:
        if descriptor in sockets:
            sockets[descriptor].accept()
            num += 1
    if ready == [0]:
        print(num)
        break
"""


class Impostor:
    """A stranger in the place of a server. `num` is how many have connected to him, once he has left."""

    num = -1

    @classmethod
    @contextmanager
    def of(cls, stranger: Stranger, server: FakeServer) -> Iterator["Impostor"]:
        addresses = [*server.connection.control, *(address for each in server.endpoints for address in each)]
        names = [Path(it.removeprefix("ipc://")).name for it in addresses]
        impostor = cls()
        process = stranger.start(IMPERSONATE, server.path.parent, *names, before="import select, socket")
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield impostor
            impostor.num = int(process.communicate(timeout=120)[0])


@pytest.fixture
def server(shared: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server whose folder lies in one that is everybody's, as /tmp is."""
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with FakeServer(num_ranks=1) as server:
        try:
            yield server
        finally:
            stranger.remove(server.path.parent)
            server.path.parent.mkdir()


def crash(server: FakeServer) -> None:
    """The server is gone, and its folder, too."""
    server.do_now(server.die)
    shutil.rmtree(server.path.parent)


def test_a_client_that_runs_does_not_connect_again_to_a_stranger(server: FakeServer, stranger: Stranger) -> None:
    simulation = connect(server.connection, timeout_s=1.0)
    assert simulation.send(0, u=np.zeros(4))
    server.wait_until(lambda: len(server.steps) == 1)
    crash(server)
    # While it waits, ZeroMQ tries to connect again, ten times a second.
    with Impostor.of(stranger, server) as impostor, pytest.raises(Unreachable):
        simulation.finish()
    assert impostor.num == 0


def test_a_client_that_begins_does_not_connect_to_a_stranger(server: FakeServer, stranger: Stranger) -> None:
    crash(server)
    with Impostor.of(stranger, server) as impostor, pytest.raises(Unreachable, match=r"no word for 0\.5 s"):
        connect(server.connection, timeout_s=0.5)
    assert impostor.num == 0


def test_a_client_in_c_that_begins_does_not_connect_to_a_stranger(
    server: FakeServer, stranger: Stranger, client: NativeClient, tmp_path: Path
) -> None:
    server.connection.write(tmp_path / "connection.json")
    crash(server)
    with Impostor.of(stranger, server) as impostor:
        said = client.ask(f"connect 0 1 connection={tmp_path / 'connection.json'} timeout=0.5")
        assert "no word for 0.5 s" in said
    assert impostor.num == 0


def test_a_client_in_c_that_runs_does_not_connect_again_to_a_stranger(
    server: FakeServer, stranger: Stranger, client: NativeClient, tmp_path: Path
) -> None:
    server.connection.write(tmp_path / "connection.json")
    assert client.ask(f"connect 0 1 connection={tmp_path / 'connection.json'} timeout=1") == "ok"
    assert client.send(0) == ["ok"]
    server.wait_until(lambda: len(server.steps) == 1)
    crash(server)
    with Impostor.of(stranger, server) as impostor:
        assert client.ask("finish").startswith("error UNREACHABLE")
    assert impostor.num == 0


def test_no_way_leads_to_a_folder_that_is_open_a_link_or_of_somebody_else(shared: Path, stranger: Stranger) -> None:
    def way(name: str, mode: int) -> str | None:
        folder = shared / name
        folder.mkdir()
        folder.chmod(mode)
        (folder / "socket").touch()
        return f"ipc://{folder}/socket"

    ways = PrivateIpcPaths()
    assert ways.to(way("ours", 0o700) or "") is not None
    assert ways.to(way("open", 0o755) or "") is None
    theirs = way("theirs", 0o700)
    stranger.owns(shared / "theirs")
    assert ways.to(theirs or "") is None
    (shared / "link").symlink_to(shared / "ours")
    assert ways.to(f"ipc://{shared}/link/socket") is None
    ways.close()


READERS = ["Python", "C"]


@pytest.mark.parametrize("language", READERS)
@pytest.mark.parametrize(
    ("mode", "transport", "problem"),
    [
        (0o644, "curve", "is open to others (mode 0644): a connection file must be yours alone, as chmod 600 makes it"),
        (0o660, "ipc", "is open to others (mode 0660): a connection file must be yours alone, as chmod 600 makes it"),
        (0o644, "ipc", ""),
        (None, "ipc", "belongs to user {uid}: a connection file must be your own"),
    ],
    ids=["readable key", "writable", "readable without key", "of somebody else"],
)
def test_a_connection_file_that_others_may_have_written_or_whose_key_they_may_read_is_refused(
    stranger: Stranger, client: NativeClient, language: str, mode: int | None, transport: str, problem: str
) -> None:
    with FakeServer(num_ranks=1, transport=transport) as server:
        if mode is None:
            server.path.chmod(0o644)
            stranger.owns(server.path)
        else:
            server.path.chmod(mode)
        if language == "C":
            said = client.connect(server)
        else:
            try:
                ConnectionFile.read(server.path)
                said = "ok"
            except ConfigError as error:
                said = str(error)
        assert said.endswith(f"{server.path} {problem.format(uid=stranger.uid)}" if problem else "ok")
        if language == "C" and not problem:
            assert client.ask("finish") == "ok"
