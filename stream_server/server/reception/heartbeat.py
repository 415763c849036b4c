"""The connection by which a launcher sees that a rank lives."""

import json
import os
from types import TracebackType
from typing import Self

import zmq

from stream_server.messages.ipc import Ways

LINGER_MS = 1000


class Heartbeat:
    """Connects to a launcher at `address` while the `with` block lasts, and says there that it leaves in order.

    It is there before MPI and the user's code, in which a rank may hang. Nothing is ever read: libzmq's own thread
    answers the launcher's heartbeats, whatever Python does, and as long as the process is not stopped.
    """

    def __init__(self, address: str, rank: int) -> None:
        self.address = address
        self.rank = rank

    def __enter__(self) -> Self:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._ways = Ways()
        self._socket.connect(self._ways.connectable(self.address))
        self._say(pid=os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._say(leaving=True)
        self._socket.close(linger=LINGER_MS)
        self._context.term()
        self._ways.close()

    def _say(self, **words: object) -> None:
        self._socket.send(json.dumps({"rank": self.rank, **words}).encode())
