"""Fabric on the server's ranks."""

import torch

from stream_server.server.ranks import Ranks
from stream_server.server.training.torch_lightning import ClusterEnvironment, Fabric, Precision, Strategy


def launch(
    ranks: Ranks, environment: ClusterEnvironment, device: torch.device, precision: Precision, strategy: Strategy | None
) -> Fabric:
    """Fabric with this strategy on several ranks, or with none on one. Collective."""
    if strategy is None:
        # The environment is given here too: left to itself, Fabric asks MPI for one.
        fabric = Fabric(accelerator=device.type, devices=1, plugins=[environment, precision])
    else:
        fabric = Fabric(
            accelerator=device.type,
            devices=ranks.local_size,
            num_nodes=ranks.num_nodes,
            strategy=strategy,
            plugins=[precision],
        )
    fabric.launch()
    return fabric
