"""Fabric on the server's ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.devices import devices_of_node
from stream_server.server.training.torch.lightning import (
    ClusterEnvironment,
    DDPStrategy,
    Fabric,
    Precision,
    SingleDeviceStrategy,
    Strategy,
)

OnStep = Callable[..., Any]


class SoloStrategy(SingleDeviceStrategy):
    """One rank."""

    def __init__(self, device: torch.device, on_step: OnStep | None) -> None:
        super().__init__(device)
        self._on_step = on_step

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        step = super().optimizer_step
        return self._on_step(optimizer, step, **kwargs) if self._on_step else step(optimizer, **kwargs)


class UnionStrategy(DDPStrategy):
    """Several ranks, each with the user's own module: `UnionGradients` reduces, and no wrapper of DDP."""

    def __init__(self, environment: ClusterEnvironment, devices: list[torch.device], on_step: OnStep | None) -> None:
        super().__init__(parallel_devices=devices, cluster_environment=environment)
        self._on_step = on_step

    def setup_module(self, module: nn.Module) -> Any:
        return module

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        step = super().optimizer_step
        return self._on_step(optimizer, step, **kwargs) if self._on_step else step(optimizer, **kwargs)


def launch(
    ranks: Ranks, environment: ClusterEnvironment, device: torch.device, precision: Precision, on_step: OnStep | None
) -> Fabric:
    """Fabric on all ranks. `on_step(optimizer, step, closure)`, if given, takes the steps of optimizers. Collective."""
    strategy: Strategy
    plugins: list[Any]
    if ranks.size == 1:
        # The environment is given here too: left to itself, Fabric asks MPI for one.
        strategy = SoloStrategy(device, on_step)
        plugins = [environment, precision]
    else:
        strategy = UnionStrategy(environment, devices_of_node(ranks), on_step)
        plugins = [precision]
    fabric = Fabric(
        accelerator=device.type,
        # The strategy has those of all ranks. Fabric would look for as many GPUs, which ranks that share one lack.
        devices=1,
        num_nodes=ranks.num_nodes,
        strategy=strategy,
        plugins=plugins,
    )
    fabric.launch()
    return fabric
