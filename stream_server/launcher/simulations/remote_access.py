"""The access of ranks to the launcher: by ipc, and from other nodes by TCP, with keys from a file of the study.

Why: docs/decisions/0094-routers-of-the-launcher.md
"""

import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import zmq

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.allocation import Allocation
from stream_server.machine import descriptors, network, private_folder
from stream_server.messages.connection_guard import ConnectionGuard
from stream_server.messages.curve import ZAP_ADDRESS, KeyPair, secure_server_socket, zap_reply
from stream_server.messages.launcher_endpoint import LauncherEndpoint
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
    before: LauncherEndpoint | None = None

    @classmethod
    def of(cls, config: StudyConfig, num_ranks: int, before: Path) -> Self | None:
        """The access of a study whose server has this many ranks; None where all of them run on this node, beside us.

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
        earlier = None
        with suppress(ConfigError):
            earlier = LauncherEndpoint.read(before)
        # A rank that has lost its connection may be there once more.
        max_connections = 2 * num_ranks + descriptors.STRANGERS
        descriptors.require(2 * (config.launcher.max_running + max_connections), "jobs, ranks and strangers")
        return cls(
            address=ANYWHERE if interface is None else interface.address,
            ports=config.network.ports,
            keys=KeyPair.make() if earlier is None else earlier.keys,
            max_connections=max_connections,
            before=earlier,
        )

    @contextmanager
    def published(self, file: Path, *, link: str, alive: str) -> Iterator[None]:
        """Within, the file tells ranks on other nodes where we are."""
        LauncherEndpoint(host=socket.gethostname(), link=link, alive=alive, keys=self.keys).write(file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


class RankRouter:
    """A ROUTER of ours, to which ranks connect at `address`. Main thread only.

    With `remote` they also connect from other nodes, at `endpoint`: over TCP, on the port of `before` if that is still
    free. Only those come in there who have the keys, and floods are cut off; an `ipc://` address
    stays free of keys. `sockets` become readable when something has come, or libzmq asks who may connect.

    Raises:
        ConfigError: when it is entered: there is no free port.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[int, int]]

    def __init__(self, address: str, remote: RemoteAccess | None, before: str | None) -> None:
        self.address = address
        self.remote = remote
        self.endpoint = ""
        self.sockets: tuple[zmq.Socket[bytes], ...] = ()
        self._before = before
        self._guard: ConnectionGuard | None = None

    def __enter__(self) -> Self:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in self.options.items():
            self._socket.set(option, value)
        self.sockets = (self._socket,)
        if self.remote is None:
            self._socket.bind(self.address)
            return self
        # A holder of the keys may send a message of any size, such as the plan of a large study.
        self._guard = ConnectionGuard(
            self.name,
            max_connections=self.remote.max_connections,
            names=(self.name,),
            wake=lambda: None,
            max_unfinished=math.inf,
        )
        self._guard.watch(self.name, self._socket)
        self._socket.bind(self.address)
        self._questions = self._context.socket(zmq.REP)
        self._questions.bind(ZAP_ADDRESS)
        self.sockets = (self._socket, self._questions)
        secure_server_socket(self._socket, self.remote.keys)
        self._guard.start()
        self.endpoint = self._bind_tcp(self.remote)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._guard is not None:
            self._guard.stop()
            self._questions.close(linger=0)
        self._socket.close()
        self._context.term()

    def messages(self) -> Iterator[list[bytes]]:
        """The messages that have come, without waiting."""
        while self._guard is not None and self._questions.poll(0):
            self._questions.send_multipart(zap_reply(self._questions.recv_multipart(), self._is_known))
        while self._socket.poll(0):
            if self._guard is None:
                yield self._socket.recv_multipart()
            else:
                frames = self._socket.recv_multipart(copy=False)
                self._guard.heard(self.name, frames[0].bytes, frames[-1])
                yield [frame.bytes for frame in frames]
        if self._guard is not None:
            self._guard.turn += 1

    def _bind_tcp(self, remote: RemoteAccess) -> str:
        bind = partial(bind_tcp, self._socket, address=remote.address, host=socket.gethostname())
        if self._before is not None:
            _, port = host_and_port(self._before)
            with suppress(ConfigError):
                return bind(ports=(port, port))
        return bind(ports=remote.ports)

    def _is_known(self, key: str) -> bool:
        return self.remote is not None and key == self.remote.keys.public


def endpoint_file(folder: Path, output_dir: Path, number: int) -> Path:
    """The file for ranks of the server's `number`-th start, of a launcher with this private folder.

    No two starts have the same one: a node may remember for a while what a file was that has been replaced.
    """
    return output_dir / f"{folder.name}-{number}.json"


def remove_old_endpoint_files(output_dir: Path, keep: Path) -> None:
    """Remove the files that launchers which were killed have left."""
    for file in output_dir.glob(f"{private_folder.PREFIX}*.json"):
        if file != keep:
            file.unlink(missing_ok=True)
