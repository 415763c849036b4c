"""The trained model in a format that everybody reads."""

from pathlib import Path

import numpy as np

from stream_server.config import load
from stream_server.errors import ConfigError, DamagedCheckpoint
from stream_server.server.model.model_export import export_model
from stream_server.server.model.warm_start import find_source
from stream_server.server.user.normalization import Normalization
from stream_server.storage.tensor_file import read_tensors
from tests.faults.sweep.corruption.stores.store import Store, Verdict

CONFIG = load(Path(__file__).parents[4] / "study" / "numpy_study" / "study.json", ())


def make(folder: Path, study: int) -> None:
    export_model(
        folder / "model", _tensors(study), owner="Server", config=CONFIG, normalization=Normalization.of(CONFIG)
    )


def read(folder: Path) -> Verdict:
    """Read it, as a warm start does."""
    try:
        source = find_source(folder / "model")
        assert isinstance(source, Path)
        found = read_tensors(source, as_torch=False)
    except (ConfigError, DamagedCheckpoint, ValueError, OSError):
        return Verdict.REFUSED
    wanted = _tensors(0)
    assert found.keys() == wanted.keys(), "tensors are missing"
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted), "another model is believed"
    return Verdict.WHOLE


def _tensors(study: int) -> dict[str, np.ndarray]:
    return {"weights": np.arange(60, dtype=np.float32) + study, "bias": np.full(4, study, np.float64)}


STORE = Store(name="model", make=make, read=read, targets=("model/model.safetensors",))
