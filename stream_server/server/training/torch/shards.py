"""Tensors that the ranks share out: each has some of the rows, as `torch.distributed.fsdp.fully_shard` deals them.

A rank saves its rows under the name of the tensor, and reads those that it needs from the parts of any number of ranks.

Why: docs/decisions/0102-saved-shards.md
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_server.server.ranks.communicator import Ranks
from stream_server.storage.plain_state import DeferredArray
from stream_server.storage.shards import shard
from stream_server.storage.tensor_file import DeferredTensor, open_tensors

# Gives what stands for the bytes of a sharded tensor in a state; the name is that of its place.
OfShards = Callable[[str, Tensor], Any]


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank has some rows of a tensor, which is a DTensor."""
    return any(placement.is_shard() for placement in getattr(tensor, "placements", ()))


def local(tensor: Any) -> Tensor:
    """What this rank has of a tensor: its rows, or the tensor itself."""
    with torch.no_grad():
        part: Tensor = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    return part


def rows(tensor: Any) -> range:
    """The rows that this rank has of a sharded tensor.

    Raises:
        TypeError: it is not dealt out by rows, over all ranks.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.ndim != 1 or placements[0].dim != 0:
        raise TypeError(f"it is placed as {placements} on {mesh}, but can be saved only if it is sharded by its rows")
    num, num_each = tensor.shape[0], -(-tensor.shape[0] // mesh.size())
    start = min(mesh.get_local_rank() * num_each, num)
    return range(start, min(start + num_each, num))


def like(tensor: Any, shape: list[int], read: Callable[[int, int], Tensor]) -> Tensor:
    """A saved tensor of this `shape` as a DTensor that goes with another one, a sharded parameter.

    One of the same shape is dealt out likewise, and any other is whole on each rank. `read` gives the rows from one to
    another.
    """
    placements, of_rows = tensor.placements, rows(tensor)
    if shape != list(tensor.shape):
        from torch.distributed.tensor import Replicate

        placements, of_rows = [Replicate()], range(shape[0])
    whole = torch.empty(shape, device="meta")
    made: Tensor = type(tensor.detach()).from_local(
        read(of_rows.start, of_rows.stop),
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
    return made


def read_like(path: Path, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a .safetensors file by name, shared out as those of `own` are.

    Raises:
        ValueError, OSError: as `read_tensors`.
    """
    with open_tensors(path) as file:
        return {name: _like(own.get(name), file, name) for name in file.keys()}  # noqa: SIM118


def _like(tensor: Tensor | None, file: Any, name: str) -> Tensor:
    part = file.get_slice(name)
    if tensor is None or not is_sharded(tensor) or not part.get_shape():
        whole: Tensor = file.get_tensor(name)
        return whole
    return like(tensor, part.get_shape(), lambda start, stop: part[start:stop])


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """A copy of the bytes of a tensor on the CPU, since NumPy has not all of torch's types."""
    copied = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
    values: NDArray[np.uint8] = copied.reshape(-1).view(torch.uint8).numpy()
    return values


def saved_shard(tensor: Tensor) -> dict[str, Any]:
    """The saved form of one rank's shard of a tensor."""
    dtype, offset = str(tensor.dtype).removeprefix("torch."), rows(tensor).start
    return shard(dtype=dtype, shape=tensor.shape, offset=offset, values=bytes_of(local(tensor)))


def sharded_in(state_with: Callable[[OfShards], Any]) -> dict[str, Tensor]:
    """The sharded tensors in the state that this function gives, by the names of their places."""
    tensors: dict[str, Tensor] = {}
    state_with(tensors.setdefault)
    return tensors


class Lender:
    """Brings sharded tensors to rank 0 as a whole, one at a time, as it asks for them. Main thread.

    They are those in the state that `state_with` gives, on each rank.
    """

    def __init__(self, ranks: Ranks, state_with: Callable[[OfShards], Any]) -> None:
        self._ranks = ranks
        self._state_with = state_with
        self._tensors: dict[str, Tensor] = {}

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Within, rank 0 may read tensors; all others come to the block when it has left it. Collective."""
        self._tensors = sharded_in(self._state_with)
        if self._ranks.rank != 0:
            while (name := self._ranks.broadcast(None)) is not None:
                self._bring(name)
            yield
            return
        try:
            yield
        finally:
            self._ranks.broadcast(None)

    def bytes_of(self, name: str, tensor: Tensor) -> DeferredArray:
        """The bytes of a whole tensor, which are brought whenever they are read."""
        return DeferredArray(tensor.numel() * tensor.element_size(), lambda start, stop: self._ask(name)[start:stop])

    def tensor(self, name: str) -> DeferredTensor:
        """A whole tensor, which is brought whenever it is read."""
        tensor = self._tensors[name]
        empty = torch.empty(0, dtype=tensor.dtype)
        return DeferredTensor(empty=empty, shape=tuple(tensor.shape), read=lambda: self._ask(name))

    def _ask(self, name: str) -> NDArray[np.uint8]:
        self._ranks.broadcast(name)
        return self._bring(name)

    def _bring(self, name: str) -> NDArray[np.uint8]:
        # Over MPI, which takes any device and number of rows, and tells of a rank that has failed.
        own, me = bytes_of(local(self._tensors[name])), self._ranks.rank
        whole, place = own, own.size
        if me == 0:
            whole = np.empty(self._tensors[name].numel() * self._tensors[name].element_size(), np.uint8)
            whole[:place] = own
        for rank in range(1, self._ranks.size):
            part = self._ranks.broadcast_bytes(own.tobytes() if rank == me else b"", rank)
            if me == 0:
                whole[place : place + len(part)] = np.frombuffer(part, np.uint8)
                place += len(part)
        return whole
