"""Saved models: those in the checkpoints of a study and its best ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError, DamagedCheckpoint
from stream_server.server.checkpoint.folder import (
    MANIFEST_FILE,
    MODEL,
    SAMPLES,
    STUDY,
    CheckpointFolder,
    Manifest,
    read_manifest,
)
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.server.checkpoint.search import newest_readable
from stream_server.server.checkpoint.user_state import load_user_state, read_learned, user_file
from stream_server.server.model.best_models import FACTS_FILE, read_facts
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import Step
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.folders import PendingFile, damaged_files
from stream_server.storage.plain_state import encode, read_state
from stream_server.storage.typed import listed

CHECKPOINTS = "checkpoints"

_CALLBACKS = "callbacks"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModel:
    """The folder of a saved model, and after how many batches it was; `checkpoint` has the samples that go with it.

    Paths are text, so that rank 0 can tell all others.
    """

    folder: str
    batches: int
    checkpoint: str | None
    num_ranks: int = 0


def find_saved_model(path: Path) -> SavedModel:
    """Find the model in a checkpoint, one of the best models, or the newest of a folder with checkpoints in it.

    Of the output folder of a study, or the folder of its checkpoints, it is the model of the newest checkpoint.

    Raises:
        ConfigError: there is no model.
        DamagedCheckpoint: what is there is not as it was saved.
    """
    if (path / MANIFEST_FILE).is_file():
        manifest = _manifest(path)
        return SavedModel(folder=str(path), batches=manifest.batches, checkpoint=str(path), num_ranks=manifest.ranks)
    if (path / FACTS_FILE).is_file():
        newest = _newest(path.parent.parent)
        return SavedModel(
            folder=str(path),
            batches=read_facts(path)["batch"],
            checkpoint=None if newest is None else newest.folder,
            num_ranks=0 if newest is None else newest.num_ranks,
        )
    newest = _newest(path / CHECKPOINTS) or _newest(path)
    if newest is None:
        raise ConfigError(
            f"{path} must be the output folder of a study, or one of its checkpoints, such as checkpoints/000042 or "
            f"checkpoints/best/batch-000120, but {'there is no checkpoint in it' if path.exists() else 'is not there'}"
        )
    return newest


def model_files(
    server: StreamServer, step: Step, *, callbacks: Mapping[str, Any], allow_pickle: bool
) -> list[PendingFile]:
    """The files of the model as it is now, without what only training needs. Main thread.

    `callbacks` are the states of built-in callbacks that belong to it, by the names of `Callbacks.state_dict`.
    """
    state = encode({**step.model_state(), _CALLBACKS: dict(callbacks)})
    return [PendingFile(path=MODEL, write=state.write), user_file(server, allow_pickle=allow_pickle)]


def load_model(
    saved: SavedModel, server: StreamServer, step: Step, callbacks: Callbacks, *, allow_pickle: bool
) -> None:
    """Give a server that is set up the model, its own state, and that of built-in callbacks. Main thread.

    Raises:
        DamagedCheckpoint: it is not as it was saved.
        UserCodeError: the server makes another model, or its `load_state_dict` raised.
        ConfigError: its state was pickled, which the study does not allow.
    """
    folder = Path(saved.folder)
    state = read_learned(folder)
    if state.get("model"):
        step.load_model_state(state)
    load_user_state(folder, server, allow_pickle=allow_pickle)
    states = state.get(_CALLBACKS)
    callbacks.load_state_dict(read_state(folder / STUDY)[_CALLBACKS] if states is None else states)


def _manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    damaged = damaged_files(folder, manifest.files, [path for path in manifest.files if not path.endswith(SAMPLES)])
    if damaged:
        raise DamagedCheckpoint(f"{folder} is not as it was written: {listed(damaged.values(), '; ')}")
    return manifest


def _newest(folder: Path) -> SavedModel | None:
    """The model of the newest valid checkpoint in a folder of checkpoints, if there is one."""
    checkpoints = CheckpointFolder(folder)
    newest = newest_readable(checkpoints, read_incarnations(folder), {})
    return None if newest is None else find_saved_model(checkpoints.path(newest.checkpoint))
