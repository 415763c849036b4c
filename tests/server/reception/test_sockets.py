"""The sockets of a receiver: waiting and waking."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_server.messages.curve import KeyPair
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.sockets import ReceiverSettings, Sockets, _process_of


def test_a_wake_while_the_receiver_wakes_up_does_not_silence_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ReceiverSettings(ipc_folder=tmp_path, host="here", address="127.0.0.1")
    sockets = Sockets(rank=1, max_unread=1, access=CurveAccess(KeyPair.make()), settings=settings)
    sockets.open()
    read = os.read

    def wake_and_read(descriptor: int, num: int) -> bytes:
        sockets.wake()
        return read(descriptor, num)

    try:
        sockets.wake()
        with monkeypatch.context() as patched:
            patched.setattr(os, "read", wake_and_read)
            assert sockets.wait(5.0)
        sockets.wait(0.0)
        sockets.wake()
        assert sockets.wait(0.0)
    finally:
        sockets.close()


@pytest.mark.parametrize(
    ("address", "process"),
    [
        (f"localhost:{os.geteuid()}:4:4242", 4242),
        (f"localhost:{os.geteuid() + 1}:4:4242", None),
        ("127.0.0.1", None),
        ("2001:db8::1000:1000:4242", None),
        (f"::{os.geteuid()}:4242", None),
    ],
)
def test_only_a_socket_of_this_node_tells_the_process_of_this_user(address: str, process: int | None) -> None:
    frame = SimpleNamespace(get=lambda name: address)
    assert _process_of(frame) == process  # type: ignore[arg-type]
