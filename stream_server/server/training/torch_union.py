"""Data-parallel passes for ranks that have no data."""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stream_server.server.training.torch_lightning import ClusterEnvironment, DDPStrategy

# Newer versions of torch warn of the old name.
_KNOWN = signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
_NO_SYNC: dict[str, Any] = {_SYNC_BUFFERS: False}


class UnionStrategy(DDPStrategy):
    """DDP on which a rank without a batch can take part in a backward pass without running the model."""

    def __init__(self, environment: ClusterEnvironment, devices: list[torch.device]) -> None:
        # Buffers would be broadcast from rank 0 at every forward, whether it has data or not.
        super().__init__(
            parallel_devices=devices,
            cluster_environment=environment,
            gradient_as_bucket_view=True,
            **_NO_SYNC,
        )
        self._wrapped: DistributedDataParallel | None = None

    def setup_module(self, module: nn.Module) -> DistributedDataParallel:
        self._wrapped = super().setup_module(module)
        return self._wrapped

    @property
    def wrapped(self) -> DistributedDataParallel:
        assert self._wrapped is not None
        return self._wrapped

    def empty_pass(self) -> None:
        """Add nothing to the gradients and reduce them over the ranks, running no code of the user's.

        Skipping the forward would hang the others in DDP's bucket rebuild, so 0 × the sum of the parameters goes
        forward and backward through the wrapper.
        """
        model = self.wrapped.module
        self.wrapped.module = _Nothing(model)
        try:
            # On a GPU, DDP moves its arguments and expects one.
            self.wrapped(0).backward()
        finally:
            self.wrapped.module = model

    def accumulating(self, enabled: bool) -> AbstractContextManager[Any]:
        """Within, gradients are added up without being reduced."""
        return self.wrapped.no_sync() if enabled else nullcontext()

    def share_buffers(self, source: int) -> None:
        """Give the module buffers of rank `source` to all ranks; collective."""
        for buffer in self.wrapped.module.buffers():
            dist.broadcast(buffer, source)


class _Nothing(nn.Module):
    """Gives 0, which depends on all parameters of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that the parameters do not become this module's own.
        self._learned = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)

    def forward(self, *_: object) -> Tensor:
        return 0 * torch.stack([parameter.sum().float() for parameter in self._learned]).sum()
