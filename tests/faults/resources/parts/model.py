"""The folder of the trained model is the new one or the old one, complete."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from stream_server.config import load
from stream_server.server.model.model_export import export_model
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.user.normalization import Normalization
from tests.support.runs import NUMPY_STUDY
from tests.support.small_disk import PAGE, SmallDisk

LARGEST = 8 * PAGE
CONFIG = load(NUMPY_STUDY)


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """A model, another one with `num_pages` left, and a third once the disk is clear."""
    size = 1 + draw.randrange(LARGEST) // 8
    _export(folder, 1.0, size)
    disk.leave(num_pages * PAGE)
    try:
        _export(folder, 2.0, size)
        yield from _wrong_model(folder, 2.0)
    except OSError:
        yield from _wrong_model(folder, 1.0)
    disk.clear()
    _export(folder, 3.0, size)
    yield from _wrong_model(folder, 3.0)


def _export(folder: Path, value: float, size: int) -> None:
    tensors = {"w": np.full(size, value)}
    export_model(folder / "model", tensors, owner="X", config=CONFIG, normalization=Normalization(SoloRanks()))


def _wrong_model(folder: Path, expected: float) -> Iterator[str]:
    found = set(load_file(folder / "model" / "model.safetensors")["w"].tolist())
    if found != {expected}:
        yield f"the model holds {found} instead of {expected}"
    if (names := [path.name for path in folder.iterdir()]) != ["model"]:
        yield f"left behind: {names}"
