"""Servers whose model is sharded over ranks that are all this process, one after the other, without a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.user.torch_server import TorchServer
from tests.support.saved_models import config_of, set_up


class OneOf(SoloRanks):
    """One of several ranks, which meets no other."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


@contextmanager
def sharded(server_class: type[TorchServer], rank: int, size: int, ranks: Any = None, **config: Any) -> Iterator[Any]:
    """The step of a rank whose server has its rows of each parameter, and an optimizer of these."""
    server = server_class(config_of(**config))
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with set_up(server) as step:
            mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
            for child in (*server.model.children(), server.model):
                fully_shard(child, mesh=mesh)
            for group, parameters in zip(server.optimizer.param_groups, [[*server.model.parameters()]], strict=True):
                group["params"] = parameters
            server.rank, server.num_ranks = rank, size
            step._ranks = OneOf(rank, size) if ranks is None else ranks
            yield step
            step._ranks = SoloRanks()
    finally:
        dist.destroy_process_group()


def rows_of(whole: Tensor, rank: int, size: int) -> Tensor:
    """The rows of a rank, as torch deals them."""
    chunks = torch.chunk(whole, size) if whole.shape[0] else [whole]
    return chunks[rank] if rank < len(chunks) else whole[:0]


def differing(state: Any, whole: Any, rank: int, size: int, place: str = "") -> list[str]:
    """The places at which the state of a rank is not its part of that of an unsharded model, by the bit."""
    if isinstance(whole, dict):
        names = [f"{place} has the keys {[*state]}"] if state.keys() != whole.keys() else []
        return names + [it for key in whole for it in differing(state[key], whole[key], rank, size, f"{place}.{key}")]
    if isinstance(whole, list):
        return [it for n, each in enumerate(whole) for it in differing(state[n], each, rank, size, f"{place}.{n}")]
    if isinstance(state, DTensor):
        state, whole = state.to_local(), rows_of(whole, rank, size)
    same = torch.equal(state, whole) and state.dtype == whole.dtype if isinstance(whole, Tensor) else state == whole
    return [] if same else [place]
