"""The classes of the plug points that have a name in study.json: those built in, and those that packages register.

The built-in ones are registered here alone: `config` offers the names, and each room loads its own.

Why: docs/decisions/0091-plug-points.md
"""

import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream_server.user_code import load_class

POLICIES: Mapping[str, str] = {
    "reservoir": "stream_server.buffers.reservoir:Reservoir",
    "uniform": "stream_server.buffers.reservoir:UniformReservoir",
    "firo": "stream_server.buffers.firo:Firo",
    "fifo": "stream_server.buffers.fifo:Fifo",
}
"""`buffer.policy`."""

BACKENDS: Mapping[str, str] = {
    "local": "stream_server.launcher.backends.local:LocalBackend",
    "slurm": "stream_server.launcher.backends.slurm:Slurm",
    "slurm-steps": "stream_server.launcher.backends.slurm_steps:SlurmSteps",
    "pbs": "stream_server.launcher.backends.pbs:Pbs",
    "lsf": "stream_server.launcher.backends.lsf:Lsf",
    "flux": "stream_server.launcher.backends.flux:Flux",
    "oar": "stream_server.launcher.backends.oar:Oar",
}
"""`launcher.backend`, and but for `slurm-steps` also `server.backend`."""

SAMPLERS: Mapping[str, str] = {
    "uniform": "stream_server.samplers.sequences:uniform",
    "lhs": "stream_server.samplers.sequences:latin_hypercube",
    "halton": "stream_server.samplers.sequences:halton",
    "sobol": "stream_server.samplers.sequences:sobol",
}
"""`parameters.sampler`: points that follow from the seed and their number."""

GENERATORS: Mapping[str, str] = {
    "breed": "stream_server.samplers.breed:Breed",
    "generative": "stream_server.samplers.generative:Generative",
    "uncertainty": "stream_server.samplers.uncertainty:Uncertainty",
}
"""`parameters.sampler`: points that are suggested while the study runs."""

WRITERS: Mapping[str, str] = {
    "tensorboard": "stream_server.server.metrics.tensorboard_writer:TensorBoardWriter",
}
"""`metrics.writers`."""


def registered(plug_point: str) -> dict[str, str]:
    """The classes that installed packages register as entry points `stream_server.PLUG_POINT`, such as "policies"."""
    # It reads the metadata of every package that is installed.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"stream_server.{plug_point}")}


def load_named(name: str, built_in: Mapping[str, str], folder: Path, *, kind: str) -> Any:
    """Load the class that a key of study.json names: one that is `built_in`, or one of the user's.

    Args:
        name: what the key says.
        built_in: one of the registries above.
        folder: folder of the study.
        kind: the key; errors begin with it.

    Raises:
        ConfigError, UserCodeError: see `load_class`.
    """
    if name not in built_in:
        return load_class(name, folder, kind=kind)
    module, _, attribute = built_in[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
