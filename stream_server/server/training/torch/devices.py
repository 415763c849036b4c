"""The hardware that each rank computes on, its device, threads and memory, and torch's process group of the ranks.

Why: docs/decisions/0078-torchs-ranks.md
"""

import ctypes
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stream_server.machine import network, private_folder
from stream_server.server.ranks.communicator import Ranks

# Numbers of options in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**30
LARGEST_MMAP_THRESHOLD = 32 * 2**20


def device_of(ranks: Ranks, wanted: str = "auto") -> torch.device:
    """This rank's device, as `training.device` has it; the ranks of a node share its GPUs when there are fewer."""
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())


def backend_of(ranks: Ranks, device: torch.device) -> str:
    """The backend by which the ranks' devices communicate: NCCL refuses ranks that share a GPU. Collective.

    GPUs are told apart by their UUID: a scheduler may show each rank only its own, which is device 0 then.
    """
    own = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    gpus = ranks.broadcast(ranks.gather(own))
    return "nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def limit_threads(num_threads: int) -> None:
    """Keep torch's threads within this rank's share of the cores, unless the user said otherwise.

    The environment stays as it is: the simulations inherit it from rank 0.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(num_threads)


def keep_freed_memory() -> None:
    """Make the C library keep what is freed, unless the user tuned it.

    By default glibc gives the memory of large gradients and activations back to the system after every update and
    faults it in again page by page: the heat study's network of 2.6 million weights took 20 ms a step on a CPU, and
    15 ms without that (measured).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and not any(name.startswith("MALLOC_") for name in os.environ):
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)


class TorchGroup:
    """The default process group, of all ranks, while the `with` block lasts. Collective; nothing for one rank.

    With `even_alone` one rank has one, too.

    The ranks find each other by files in a private folder: on one node in the one for temporary files, on several ones
    in the `shared` folder. torch's own store listens on a port, where every user of the machine may write.
    """

    def __init__(
        self, ranks: Ranks, *, backend: str, shared: Path, interface: str | None = None, even_alone: bool = False
    ) -> None:
        self._ranks = ranks
        self._backend = backend
        self._shared = shared
        self._is_alone = even_alone and ranks.size == 1
        self._interface = None if interface is None else network.chosen(interface).name
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "TorchGroup":
        if self._is_alone or self._ranks.size > 1:
            self._choose_interface()
        if self._is_alone:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(self._backend, store=store, rank=0, world_size=1)
        elif self._ranks.size > 1:
            dist.init_process_group(
                self._backend,
                # The watchdog bounds every wait of the ranks, and can tell where they are.
                timeout=timedelta(days=1),
                store=self._open_store(),
                rank=self._ranks.rank,
                world_size=self._ranks.size,
            )
            self._ranks.barrier()
            if self._backend == "gloo":
                # All are connected. NCCL looks into the store later, too.
                self._remove_store()
        return self

    def __exit__(self, kind: Any, *exc_info: object) -> None:
        # After an error the group is left to the end of the process: a peer that waits in a reduction would take the
        # closed connection for a failure of its own.
        if self._is_alone:
            dist.destroy_process_group()
        elif self._ranks.size > 1 and kind is None:
            # Rank 0 keeps the store in which the others may still look.
            self._ranks.barrier()
            dist.destroy_process_group()
        self._remove_store()

    def _choose_interface(self) -> None:
        interface = self._interface or ("lo" if self._ranks.num_nodes == 1 else None)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if self._interface is not None and self._backend == "nccl":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", self._interface)

    def _open_store(self) -> Any:
        if self._ranks.rank == 0:
            where = private_folder.place() if self._ranks.num_nodes == 1 else self._shared
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(prefix="stream-group-", dir=where)
        folder = self._ranks.broadcast(None if self._folder is None else self._folder.name)
        return dist.FileStore(f"{folder}/store", self._ranks.size)  # type: ignore[attr-defined]

    def _remove_store(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
