"""Models on disk: in the generations of a study and among its best ones."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stream_server.disk import ordinary
from stream_server.errors import ConfigError, DamagedCheckpoint
from stream_server.server.checkpoint.best_folder import FACTS_FILE, read_facts
from stream_server.server.checkpoint.checksum_file import record_of
from stream_server.server.checkpoint.epochs import read_epochs
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.manifest import MANIFEST_FILE, MAX_BYTES, Manifest
from stream_server.server.checkpoint.part import Part
from stream_server.server.checkpoint.search import newest_readable
from stream_server.server.checkpoint.user_state import load_user_state, user_part
from stream_server.server.plain_state import encode, read_state
from stream_server.server.snapshot import MODEL, STUDY
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import Callbacks
from stream_server.server.training.step import Step

CHECKPOINTS = "checkpoints"

_BEHAVIOURS = "callbacks"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModel:
    """Where a model is, and after how many batches it was saved; `generation` is the one whose samples go with it.

    Paths are text, so that rank 0 can tell all others.
    """

    folder: str
    batches: int
    generation: str | None
    num_ranks: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_saved_model(path: Path) -> SavedModel:
    """The model that is meant by a generation, by one of the best models, or by a folder with checkpoints in it.

    Of the output folder of a study, or the folder of its checkpoints, it is the model of the newest generation.

    Raises:
        ConfigError: there is no model.
        DamagedCheckpoint: what is there is not as it was saved.
    """
    if (path / MANIFEST_FILE).is_file():
        manifest = _manifest(path)
        return SavedModel(folder=str(path), batches=manifest.batches, generation=str(path), num_ranks=manifest.ranks)
    if (path / FACTS_FILE).is_file():
        newest = _newest(path.parent.parent)
        return SavedModel(
            folder=str(path),
            batches=read_facts(path)["batch"],
            generation=None if newest is None else newest.folder,
            num_ranks=0 if newest is None else newest.num_ranks,
        )
    newest = _newest(path / CHECKPOINTS) or _newest(path)
    if newest is None:
        raise ConfigError(
            f"{path} must be the output folder of a study, or one of its checkpoints, such as checkpoints/000042 or "
            f"checkpoints/best/batch-000120, but {'there is no checkpoint in it' if path.exists() else 'is not there'}"
        )
    return newest


def model_parts(server: StreamServer, step: Step, *, behaviours: Mapping[str, Any], allow_pickle: bool) -> list[Part]:
    """The files of the model as it is now, without what only training needs. Main thread.

    `behaviours` are the states of built-in behaviours that belong to it, by the names of `Callbacks.state_dict`.
    """
    state = encode({**step.model_state(), _BEHAVIOURS: dict(behaviours)})
    return [Part(path=MODEL, write=state.write), user_part(server, allow_pickle=allow_pickle)]


def load_model(
    saved: SavedModel, server: StreamServer, step: Step, callbacks: Callbacks, *, allow_pickle: bool
) -> None:
    """Give a server that is set up the model, its own state, and that of built-in behaviours. Main thread.

    Raises:
        DamagedCheckpoint: it is not as it was saved.
        UserCodeError: the server makes another model, or its `load_state_dict` raised.
        ConfigError: its state was pickled, which the study does not allow.
    """
    folder = Path(saved.folder)
    state = read_state(folder / MODEL)
    if state.get("model"):
        step.load_model_state(state)
    load_user_state(folder, server, allow_pickle=allow_pickle)
    behaviours = state.get(_BEHAVIOURS)
    callbacks.load_state_dict(read_state(folder / STUDY)[_BEHAVIOURS] if behaviours is None else behaviours)


def check_files(folder: Path, manifest: Manifest, paths: Iterable[str]) -> None:
    """Read these files of a generation.

    Raises:
        DamagedCheckpoint: one is not as it was written.
    """
    for path in paths:
        try:
            whole = record_of(folder / path) == manifest.files[path]
        except (OSError, KeyError) as error:
            raise DamagedCheckpoint(f"{folder / path} cannot be read: {error}") from error
        if not whole:
            raise DamagedCheckpoint(f"{folder / path} is not as it was written")


def _manifest(folder: Path) -> Manifest:
    with open(folder / MANIFEST_FILE, "rb", opener=ordinary) as file:
        manifest = Manifest.from_bytes(file.read(MAX_BYTES))
    check_files(folder, manifest, [path for path in manifest.files if not path.endswith("samples.rows")])
    return manifest


def _newest(folder: Path) -> SavedModel | None:
    """The newest generation that counts in a folder of checkpoints, if there is one."""
    generations = Generations(folder)
    found = newest_readable(generations, read_epochs(folder)).manifest
    return None if found is None else find_saved_model(generations.path(found.generation))
