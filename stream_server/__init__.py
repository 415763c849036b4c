"""Stream Server trains a neural network on a simulation ensemble while the simulations run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_server.ragged import pack, pad
    from stream_server.server.user.callbacks import Callback
    from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
    from stream_server.server.user.stream_dataset import StreamDataset
    from stream_server.server.user.stream_server import StreamServer, log
    from stream_server.server.user.torch_server import TorchServer
    from stream_server.studies.run import Run
    from stream_server.studies.study import Study

__all__ = [
    "Callback",
    "Run",
    "SimulationBatch",
    "SimulationData",
    "StreamDataset",
    "StreamServer",
    "Study",
    "TorchServer",
    "log",
    "pack",
    "pad",
]

_HOMES = {
    "Callback": "stream_server.server.user.callbacks",
    "Run": "stream_server.studies.run",
    "SimulationBatch": "stream_server.server.user.simulation_data",
    "SimulationData": "stream_server.server.user.simulation_data",
    "StreamDataset": "stream_server.server.user.stream_dataset",
    "StreamServer": "stream_server.server.user.stream_server",
    "Study": "stream_server.studies.study",
    "TorchServer": "stream_server.server.user.torch_server",
    "log": "stream_server.server.user.stream_server",
    "pack": "stream_server.ragged",
    "pad": "stream_server.ragged",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a simulation that imports the client never loads torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
