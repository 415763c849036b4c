"""The hardware that each rank computes on: its device, its threads, its memory."""

import ctypes
import os

import torch

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
