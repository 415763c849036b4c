"""The access of ranks on other nodes to the launcher: over TCP, with keys from a file of the output folder."""

import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import zmq

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.allocation import Allocation
from stream_server.machine import descriptors, network, private_folder
from stream_server.messages.connection_guard import ConnectionGuard
from stream_server.messages.curve import ZAP_ADDRESS, KeyPair, secure_server_socket, zap_reply
from stream_server.messages.launcher_place import LauncherPlace
from stream_server.messages.tcp import ANYWHERE, bind_tcp, host_and_port


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteAccess:
    """TCP sockets for ranks on other nodes, who have the same `keys`; nobody else is let in.

    `address` is the one to listen at, "*" for all that this node has; `ports` the range to choose from, None for any.
    At most `max_connections` may come to each of the sockets, those of strangers included. The ranks of a server that
    is taken over look for us at the place of the launcher `before`.
    """

    address: str
    ports: tuple[int, int] | None
    keys: KeyPair = field(repr=False)
    max_connections: int
    before: LauncherPlace | None = None

    @classmethod
    def of(cls, config: StudyConfig, num_ranks: int, before: Path) -> Self | None:
        """The access of a study whose server has so many ranks; None where all of them run on this node, beside us.

        `before` is the file of a launcher that was killed, if it has left one.

        Raises:
            ConfigError: there is no such `network.interface` here, ranks elsewhere do not reach it, or this process
                may not open files enough.
        """
        interface = None if config.network.interface is None else network.chosen(config.network.interface)
        allocation = Allocation.found()
        is_open = interface is not None and not interface.is_loopback
        if config.server.backend != "local":
            if interface is not None and not is_open:
                raise ConfigError(
                    f"network.interface: the job of the server does not reach this node by {interface}. "
                    "Name another interface, or the subnet in which all nodes have an address"
                )
        elif num_ranks == 1 or not (is_open or (allocation is not None and allocation.num_nodes > 1)):
            return None
        found = None
        with suppress(ConfigError):
            found = LauncherPlace.read(before)
        # A rank that has lost its connection may be there once more.
        max_connections = 2 * num_ranks + descriptors.STRANGERS
        descriptors.require(2 * (config.launcher.max_running + max_connections), "jobs, ranks and strangers")
        return cls(
            address=ANYWHERE if interface is None else interface.address,
            ports=config.network.ports,
            keys=KeyPair.make() if found is None else found.keys,
            max_connections=max_connections,
            before=found,
        )

    @contextmanager
    def told(self, file: Path, *, link: str, alive: str) -> Iterator[None]:
        """Within, the file tells ranks on other nodes where we are."""
        LauncherPlace(host=socket.gethostname(), link=link, alive=alive, keys=self.keys).write(file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


class RemotePort:
    """The TCP port of a socket of ours: only those come in who have the keys, and floods are cut off. Main thread only.

    Made before anything is bound to the socket, to which an `ipc://` address is bound, if at all, before the port is
    opened: it stays free of keys. `questions` becomes readable when libzmq asks who may connect.
    """

    def __init__(self, name: str, guarded: "zmq.Socket[bytes]", access: RemoteAccess) -> None:
        self.name = name
        self.access = access
        self.questions: zmq.Socket[bytes] = guarded.context.socket(zmq.REP)
        self._socket = guarded
        # Whoever has the keys may send a message of any size, such as the plan of a large study.
        self._guard = ConnectionGuard(
            name,
            max_connections=access.max_connections,
            names=(name,),
            wake=lambda: None,
            max_unfinished=math.inf,
        )
        self._guard.watch(name, guarded)

    def open(self, place: str | None) -> str:
        """Bind the socket to a port; returns its address: with the port of `place`, if that is given and still free.

        Raises:
            ConfigError: there is no free port.
        """
        self.questions.bind(ZAP_ADDRESS)
        secure_server_socket(self._socket, self.access.keys)
        self._guard.start()
        if place is not None:
            _, port = host_and_port(place)
            with suppress(ConfigError):
                return self._bind((port, port))
        return self._bind(self.access.ports)

    def begin_turn(self) -> None:
        """Answer all that libzmq asks."""
        while self.questions.poll(0):
            self.questions.send_multipart(zap_reply(self.questions.recv_multipart(), self._is_known))

    def heard(self, frames: Sequence[zmq.Frame]) -> None:
        """Take note of a message."""
        self._guard.heard(self.name, frames[0].bytes, frames[-1])

    def end_turn(self) -> None:
        """End a turn, in which all that had come to the socket was read."""
        self._guard.turn += 1

    def close(self) -> None:
        """Watch the socket no more, which may be closed afterwards."""
        self._guard.stop()
        self.questions.close(linger=0)

    def _bind(self, ports: tuple[int, int] | None) -> str:
        return bind_tcp(self._socket, address=self.access.address, host=socket.gethostname(), ports=ports)

    def _is_known(self, key: str) -> bool:
        return key == self.access.keys.public


def messages_of(read: "zmq.Socket[bytes]", port: RemotePort | None) -> Iterator[list[bytes]]:
    """The messages that have come to a socket, which may have a TCP port; without waiting."""
    if port is not None:
        port.begin_turn()
    while read.poll(0):
        if port is None:
            yield read.recv_multipart()
        else:
            frames = read.recv_multipart(copy=False)
            port.heard(frames)
            yield [frame.bytes for frame in frames]
    if port is not None:
        port.end_turn()


def place_file(folder: Path, output_dir: Path, number: int) -> Path:
    """The file for ranks of the server's `number`-th start, of a launcher with this private folder.

    No two starts have the same one: a node may remember for a while what a file was that has been replaced.
    """
    return output_dir / f"{folder.name}-{number}.json"


def remove_old_places(output_dir: Path, keep: Path) -> None:
    """Remove the files that launchers which were killed have left."""
    for file in output_dir.glob(f"{private_folder.PREFIX}*.json"):
        if file != keep:
            file.unlink(missing_ok=True)
