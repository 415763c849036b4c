"""CURVE on sockets: key pairs, and the answers to libzmq, which asks who may connect."""

from collections.abc import Callable, Sequence
from typing import Self

import zmq
from zmq.utils import z85

from stream_server.messages.codec import JsonObject
from stream_server.messages.connection import Security

DOMAIN = "stream"
HANDSHAKE_MS = 5000
ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
ZAP_FRAMES = 7


class KeyPair(JsonObject, frozen=True, kw_only=True):
    """A CURVE key pair as z85 text."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"

    @classmethod
    def make(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())


def secure_server_socket(socket: "zmq.Socket[bytes]", keys: KeyPair) -> None:
    """Make a socket authenticate its peers at the addresses that it is bound to from now on.

    libzmq asks for each of them at `ZAP_ADDRESS` of the same context (ZeroMQ's RFC 27), and refuses all while nobody
    answers there; see `zap_reply`.
    """
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    socket.zap_domain = DOMAIN.encode()
    socket.zap_enforce_domain = True
    socket.handshake_ivl = HANDSHAKE_MS


def secure_client_socket(socket: "zmq.Socket[bytes]", security: Security) -> None:
    """Let a socket connect, from now on, to the server that has the key of a connection file."""
    socket.curve_serverkey = security.server_public_key.encode()
    socket.curve_publickey = security.client_public_key.encode()
    socket.curve_secretkey = security.client_secret_key.encode()


def secure_peer_socket(socket: "zmq.Socket[bytes]", keys: KeyPair) -> None:
    """Let a socket connect, from now on, to a socket with the same keys."""
    security = Security(server_public_key=keys.public, client_public_key=keys.public, client_secret_key=keys.secret)
    secure_client_socket(socket, security)


def zap_reply(
    request: Sequence[bytes], is_known: Callable[[str], bool], must_wait: Callable[[str], bool] = lambda _: False
) -> list[bytes]:
    """The reply to a ZAP request of libzmq: 200 and the key as the user's id, 300 for one that must wait, or 400.

    After 300 libzmq cuts the connection, and the other end tries again by itself.
    """
    if len(request) != ZAP_FRAMES or request[0] != ZAP_VERSION:
        return [ZAP_VERSION, request[1] if len(request) > 1 else b"", b"500", b"malformed request", b"", b""]
    _, number, domain, _, _, mechanism, credentials = request
    key = z85.encode(credentials).decode() if len(credentials) == 32 else ""
    if mechanism == b"CURVE" and domain == DOMAIN.encode() and key and is_known(key):
        if must_wait(key):
            return [ZAP_VERSION, number, b"300", b"this key has flooded us", b"", b""]
        return [ZAP_VERSION, number, b"200", b"OK", key.encode(), b""]
    return [ZAP_VERSION, number, b"400", b"this key is not on the list", b"", b""]
