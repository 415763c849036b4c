"""The door to Lightning Fabric.

Fabric imports torchmetrics, if that is installed, to learn its version. With all that it brings along this would be
1.3 s of a core at every start of a rank, used or not (measured), so it is out of sight meanwhile.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _out_of_sight(module: str) -> Iterator[None]:
    """Make importing a module fail, unless it is imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


with _out_of_sight("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy
    from lightning_fabric.strategies.strategy import Strategy

__all__ = [
    "ClusterEnvironment",
    "DDPStrategy",
    "DoublePrecision",
    "Fabric",
    "HalfPrecision",
    "MixedPrecision",
    "Precision",
    "SingleDeviceStrategy",
    "Strategy",
]
