"""How ranks on other nodes reach the launcher: over TCP, with keys that they find in a file of the output folder."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import zmq

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.allocation import Allocation
from stream_server.machine import network, private_folder
from stream_server.messages.curve import ZAP_ADDRESS, KeyPair, secure_server_socket, zap_reply
from stream_server.messages.launcher_place import LauncherPlace
from stream_server.messages.tcp import ANYWHERE, bind_tcp


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteAccess:
    """TCP sockets for ranks on other nodes, who have the same `keys`; nobody else is let in.

    `address` is the one to listen at, "*" for all that this node has; `ports` the range to choose from, None for any.
    The ranks of a server that is taken over look for us at the place of the launcher `before`.
    """

    address: str
    ports: tuple[int, int] | None
    keys: KeyPair = field(repr=False)
    before: LauncherPlace | None = None

    @classmethod
    def of(cls, config: StudyConfig, num_ranks: int, before: Path) -> Self | None:
        """That of a study whose server has so many ranks; None where all of them run on this node, beside us.

        `before` is the file of a launcher that was killed, if it has left one.

        Raises:
            ConfigError: there is no such `network.interface` here, or ranks elsewhere do not reach it.
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
        return cls(
            address=ANYWHERE if interface is None else interface.address,
            ports=config.network.ports,
            keys=KeyPair.make() if found is None else found.keys,
            before=found,
        )

    def bind(self, bound: "zmq.Socket[bytes]", place: str | None) -> str:
        """Bind a socket, which asks for the keys there; returns its address: `place`, if that is given and still free.

        Raises:
            ConfigError: there is no free port.
        """
        secure_server_socket(bound, self.keys)
        if place is not None:
            with suppress(zmq.ZMQError):
                bound.bind(f"tcp://{self.address}:{place.rpartition(':')[2]}")
                return place
        return bind_tcp(bound, address=self.address, host=socket.gethostname(), ports=self.ports)

    @contextmanager
    def told(self, file: Path, *, link: str, alive: str) -> Iterator[None]:
        """Within, the file tells ranks on other nodes where we are."""
        LauncherPlace(host=socket.gethostname(), link=link, alive=alive, keys=self.keys).write(file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


class AccessDesk:
    """Answers libzmq's questions about who may connect to the sockets of one context. Main thread only.

    Its `socket` becomes readable when there is one to `answer`.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: KeyPair) -> None:
        self.keys = keys
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answer all that were asked."""
        while self.socket.poll(0):
            self.socket.send_multipart(zap_reply(self.socket.recv_multipart(), self._is_known))

    def _is_known(self, key: str) -> bool:
        return key == self.keys.public


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
