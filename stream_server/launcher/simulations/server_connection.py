"""The launcher's end of the link to rank 0: its door to ZeroMQ, beside that of `liveness`."""

import math
from typing import ClassVar, Self

import zmq

from stream_server.launcher.simulations.remote_access import RankRouter, RemoteAccess
from stream_server.messages import launcher_link

Readable = int | zmq.Socket[bytes]


class ServerConnection(RankRouter):
    """The link, and the one poller for all that the launcher waits for. Main thread only.

    It speaks with one rank 0: the last to send `Rank0Alive` or `Plan`, unless its incarnation is an older one. Messages
    of any other are dropped: its server is gone. With `remote` it can come from another node, too.

    `was_interrupted`: the same rank 0 has come over another connection than before, so that messages may be lost.
    """

    name = "link"
    # Both ends keep everything: what passes is small, and nothing of it may be lost.
    options: ClassVar = {zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.LINGER: 1000}

    def __init__(self, address: str, remote: RemoteAccess | None = None) -> None:
        before = None if remote is None or remote.before is None else remote.before.link
        super().__init__(address, remote, before)
        self.incarnation = 0
        self.was_interrupted = False
        self._poller = zmq.Poller()
        self._peer: bytes | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self.watch(*self.sockets)
        return self

    @property
    def connected(self) -> bool:
        """Rank 0 has said that it is there."""
        return self._peer is not None

    def watch(self, *readables: Readable) -> None:
        """`wait` shall look at these, too."""
        for readable in readables:
            self._poller.register(readable, zmq.POLLIN)

    def ignore(self, *readables: Readable) -> None:
        """Watch these no more."""
        for readable in readables:
            self._poller.unregister(readable)

    def wait(self, timeout_s: float) -> set[Readable]:
        """Wait until something can be read; returns what can be."""
        timeout_ms = None if timeout_s == math.inf else max(0, math.ceil(timeout_s * 1000))
        return {readable for readable, _ in self._poller.poll(timeout_ms)}

    def receive(self) -> list[launcher_link.ToLauncher]:
        """All messages that have come, without waiting.

        Raises:
            MalformedMessage: rank 0 and the launcher are of different versions.
        """
        messages = []
        for peer, frame in self.messages():
            message = launcher_link.to_launcher(frame)
            if self._is_heard(peer, message):
                messages.append(message)
        return messages

    def send(self, message: launcher_link.ToServer) -> None:
        """Send to rank 0; without one the message is dropped."""
        if self._peer is not None:
            self._socket.send_multipart([self._peer, launcher_link.encode(message)])

    def forget_peer(self) -> None:
        """Rank 0 is gone; the next one, of a later incarnation, has to say that it is there."""
        if self._peer is not None:
            self.incarnation += 1
        self._peer = None

    def _is_heard(self, peer: bytes, message: launcher_link.ToLauncher) -> bool:
        if (
            isinstance(message, launcher_link.Rank0Alive | launcher_link.Plan)
            and message.incarnation >= self.incarnation
        ):
            is_same = message.incarnation == self.incarnation
            self.was_interrupted |= is_same and self._peer not in (None, peer)
            self.incarnation, self._peer = message.incarnation, peer
        return peer == self._peer
