"""One of the best models."""

from pathlib import Path

import numpy as np

from stream_server.errors import ConfigError, DamagedCheckpoint
from stream_server.server.model.best_models import BestFolder
from stream_server.server.model.saved_model import find_saved_model
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import write_state
from tests.faults.sweep.corruption.stores.store import Store, Verdict

BATCH = 120


def make(folder: Path, study: int) -> None:
    state = {"weights": np.arange(100) + study, "name": f"study {study}"}
    parts = [
        PendingFile(path="model/model.state", write=lambda file: write_state(file, state)),
        PendingFile(path="model/user.state", write=lambda file: write_state(file, {"mark": study})),
    ]
    BestFolder(folder / "best").write(BATCH, parts, {"batch": BATCH, "monitor": "loss", "value": 0.5 + study})


def read(folder: Path) -> Verdict:
    """Find it, as a warm start or an evaluation does."""
    path = BestFolder(folder / "best").path(BATCH)
    try:
        found = find_saved_model(path)
    except (DamagedCheckpoint, ConfigError):
        return Verdict.REFUSED
    assert found.batches == BATCH, f"batch {found.batches} is believed"
    return Verdict.WHOLE


STORE = Store(name="best", make=make, read=read, targets=("best/*/**/*",))
