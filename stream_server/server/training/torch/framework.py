"""Torch as the framework of a study.

Why: docs/decisions/0090-torchs-compiler.md
"""

from collections.abc import Mapping
from typing import Any

import torch

from stream_server.errors import ConfigError
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.torch.collate import TorchCollate
from stream_server.server.training.torch.devices import device_of
from stream_server.server.training.torch.precision import check_precision
from stream_server.server.training.torch.state import plain, restored
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer


class TorchFramework:
    """Torch."""

    trains_model = True

    def check_precision(self, precision: str) -> None:
        check_precision(precision, device_of(SoloRanks()))

    def make_collate(self, precision: str) -> TorchCollate:
        return TorchCollate(precision)

    def make_step(self, server: StreamServer, ranks: Ranks) -> TorchStep:
        assert isinstance(server, TorchServer)
        if server.config is None:
            raise ConfigError("a TorchServer trains with a study's config only")
        return TorchStep(server, ranks, server.config)

    def plain(self, state: Any, name: str) -> Any:
        return plain(state, name)

    def restored(self, state: Any) -> Any:
        return restored(state)

    def device_bytes(self) -> Mapping[str, int]:
        """The GPU memory that torch has allocated, now and at its peak; empty if the GPU was never used."""
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return {}
        now, peak = cuda.memory_allocated(), cuda.max_memory_allocated()
        return {"memory/device_bytes": now, "memory/device_peak_bytes": peak}
