"""The connection by which a launcher sees that a rank lives.

Why: docs/decisions/0057-echoes.md
"""

import json
import os
import socket
import threading
from types import TracebackType
from typing import Self

import zmq

from stream_server.errors import ConfigError, RankLost, StreamServerError
from stream_server.messages.curve import KeyPair, secure_peer_socket
from stream_server.messages.ipc import PrivateIpcPaths
from stream_server.messages.launcher_link import rank_name
from stream_server.messages.tcp import HOW_TO_REACH, connect_socket, host_and_port

LINGER_MS = 1000
# A launcher that is busy lets nobody in meanwhile, and would take us for lost.
REMOTE_LINGER_MS = 5000
HEARTBEAT_MS = 2000
TIMEOUT_MS = 6000
REACHED_S = 20.0


class Heartbeat:
    """Connects to a launcher at `address` while the `with` block lasts, and says there that it leaves in order.

    It is there before MPI and the user's code, in which a rank may hang. What the launcher asks is echoed by a loop of
    libzmq in a thread of its own, whatever Python does, and as long as the process is not stopped. A launcher on
    another node asks for `keys`.

    Raises:
        ConfigError: the launcher is on another node, and listens for ranks of its own node only.
        RankLost: it is on another node, and cannot be reached from here.
    """

    def __init__(self, address: str, rank: int, keys: KeyPair | None = None) -> None:
        self.address = address
        self.rank = rank
        self.keys = keys

    def __enter__(self) -> Self:
        self._paths = PrivateIpcPaths()
        try:
            self._require_launcher()
        except StreamServerError:
            self._paths.close()
            raise
        self._context = zmq.Context()
        echoing = self._connected(self._context)
        # The number of the process means something on the launcher's node only.
        echoing.send(_message(pid=os.getpid()) if self.keys is None else _message())
        self._thread = threading.Thread(target=_echo, args=(echoing,), name="heartbeat")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.term()
        self._thread.join()
        with zmq.Context() as context, self._connected(context) as leaving:
            leaving.linger = LINGER_MS if self.keys is None else REMOTE_LINGER_MS
            leaving.send(_message(leaving=True))
        self._paths.close()

    def _require_launcher(self) -> None:
        """See that it can be reached: it would take us for lost, and not before half an hour has passed."""
        if self.keys is None:
            if self._paths.to(self.address) is None:
                raise ConfigError(
                    "stream-launcher does not know of other nodes than its own, and listens there only. Write "
                    "network.interface: the name of the interface, or the subnet, by which the nodes reach each other"
                )
            return
        try:
            socket.create_connection(host_and_port(self.address), REACHED_S).close()
        except OSError as error:
            raise RankLost(f"stream-launcher cannot be reached at {self.address}: {error}. {HOW_TO_REACH}") from error

    def _connected(self, context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
        connected = context.socket(zmq.DEALER)
        connected.linger = 0
        connected.routing_id = rank_name(self.rank)
        # A connection that breaks without a word is made anew.
        connected.heartbeat_ivl, connected.heartbeat_timeout = HEARTBEAT_MS, TIMEOUT_MS
        if self.keys is not None:
            secure_peer_socket(connected, self.keys)
        connect_socket(connected, self._paths.connectable(self.address))
        return connected


def _echo(connected: "zmq.Socket[bytes]") -> None:
    """Send back what comes, until the context is terminated. The interpreter's lock is not held meanwhile."""
    try:
        zmq.proxy(connected, connected)
    except zmq.ContextTerminated:
        pass
    finally:
        connected.close()


def _message(**values: object) -> bytes:
    return json.dumps(values).encode()
