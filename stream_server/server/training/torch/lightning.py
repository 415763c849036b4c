"""The door to Lightning Fabric.

Fabric imports torchmetrics, if that is installed, to learn its version. With all that it brings along this would be
1.3 s of a core at every start of a rank, used or not (measured), so it is out of sight meanwhile. So is torch's
compiler (`compiler.py`).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from stream_server.server.training.torch.compiler import COMPILER, load_when_needed, without_path


@contextmanager
def _replaced(name: str, replacement: ModuleType | None) -> Iterator[None]:
    """Let imports of a module find another, or fail for None, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = replacement  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _replaced("torchmetrics", None), _replaced(COMPILER, without_path()):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy
    from lightning_fabric.strategies.strategy import Strategy
load_when_needed()

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
