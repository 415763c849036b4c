"""The process group of torch, opened by the server's ranks."""

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.lightning import ClusterEnvironment

LOOPBACK = "127.0.0.1"


class RanksEnvironment(ClusterEnvironment):
    """Tells Fabric where this process is.

    Fabric's own MPIEnvironment looks the same, but it would pickle what it broadcasts, resolve host names and call
    MPI_Init even in a process that was started alone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.address = LOOPBACK
        self.port = 0

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self.address

    @property
    def main_port(self) -> int:
        return self.port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._ranks.size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._ranks.local_rank

    def node_rank(self) -> int:
        return self._ranks.node


class TorchGroup:
    """The default process group, of all ranks, while the `with` block lasts. Collective; nothing for one rank."""

    def __init__(self, ranks: Ranks, *, backend: str, interface: str | None = None) -> None:
        self.environment = RanksEnvironment(ranks)
        self._ranks = ranks
        self._backend = backend
        given_address = interface is not None and _is_address(interface)
        self._address = interface if given_address else None
        self._interface = None if given_address else interface

    def __enter__(self) -> "TorchGroup":
        if self._ranks.size > 1:
            self._choose_interface()
            dist.init_process_group(
                self._backend,
                # The watchdog bounds every wait of the ranks, and can tell where they are.
                timeout=timedelta(days=1),
                store=self._open_store(),
                rank=self._ranks.rank,
                world_size=self._ranks.size,
            )
        return self

    def __exit__(self, kind: Any, *exc_info: object) -> None:
        # After an error the group is left to the end of the process: a peer that waits in a reduction would take the
        # closed connection for a failure of its own.
        if self._ranks.size > 1 and kind is None:
            # Rank 0 keeps the store in which the others may still look.
            self._ranks.barrier()
            dist.destroy_process_group()

    def _choose_interface(self) -> None:
        interface = self._interface or ("lo" if self._ranks.num_nodes == 1 else None)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if self._interface is not None and self._backend == "nccl":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", self._interface)

    def _open_store(self) -> Any:
        """A store on a port that the system chooses: a port found first and opened later may be taken meanwhile."""
        address = LOOPBACK if self._ranks.num_nodes == 1 else self._address or socket.gethostname()
        store = self._store(address, 0) if self._ranks.rank == 0 else None
        address, port = self._ranks.broadcast([address, store.port if store is not None else 0])
        self.environment.address, self.environment.port = address, port
        return self._store(address, port) if store is None else store

    def _store(self, address: str, port: int) -> Any:
        is_master = self._ranks.rank == 0
        return dist.TCPStore(  # type: ignore[attr-defined]
            address, port, self._ranks.size, is_master=is_master, wait_for_workers=False
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
