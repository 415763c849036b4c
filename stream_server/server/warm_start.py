"""A fresh study that starts from what another one has trained."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.array_tree import nested
from stream_server.server.checkpoint.user_state import load_user_state
from stream_server.server.model_export import MODEL_FILE
from stream_server.server.normalization import Normalization
from stream_server.server.plain_state import read_state
from stream_server.server.saved_model import SavedModel, find_saved_model
from stream_server.server.snapshot import MODEL, STUDY
from stream_server.server.stream_server import StreamServer
from stream_server.server.sums import check_sum
from stream_server.server.tensor_file import SUFFIX, read_tensors
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.step import Step

if TYPE_CHECKING:
    from stream_server.config import StudyConfig
    from stream_server.server.torch_server import TorchServer


def warm_start(config: "StudyConfig", server: StreamServer, step: Step, normalization: Normalization) -> str:
    """Take what the section `load` of study.json names into a server that is set up, on every rank. Main thread.

    Only for a study that begins: one that goes on has all of it in its own checkpoint. Nothing is unpickled, except the
    user's own state where `checkpoint.allow_pickle` says so.

    Returns:
        A sentence for the log, with the names of all that was skipped.

    Raises:
        ConfigError: there is nothing to start from, or it does not fit this study.
        DamagedCheckpoint: it is not as it was saved.
        UserCodeError: the `load_state_dict` of the user's class raised.
    """
    load = config.load
    assert load is not None
    source = find_source(Path(load.checkpoint))
    if isinstance(source, Path) and load.what != "model":
        raise ConfigError(f'load.what must be "model", for there is nothing but a model in {source}')
    torch_server = _as_torch_server(server)
    if torch_server is None:
        _refuse_what_a_learner_ignores(config, server)
        skipped: list[str] = []
        _load_learner(config, server, source)
    elif isinstance(source, Path):
        from stream_server.server.torch_warm_start import load_tensors

        skipped = load_tensors(torch_server, source, strict=load.strict)
    else:
        skipped = _load_torch(config, torch_server, step, source)
    if load.what == "all" and isinstance(source, SavedModel):
        _load_normalization(source, normalization)
    where = source if isinstance(source, Path) else f"{source.folder}, after batch {source.batches}"
    rest = f"; skipped: {'; '.join(skipped)}" if skipped else ""
    return f"the study starts from {where} ({load.what}){rest}"


def find_source(path: Path) -> SavedModel | Path:
    """What `load.checkpoint` means: a checkpoint, or the .safetensors file of a model.

    Raises:
        ConfigError: nothing.
        DamagedCheckpoint: a checkpoint, or a model with checksums beside it, that is not as it was saved.
    """
    file = path if path.suffix == SUFFIX else path / MODEL_FILE
    if file.is_file():
        check_sum(file)
        return file
    try:
        return find_saved_model(path)
    except ConfigError as error:
        exported = path / "model" / MODEL_FILE
        if exported.is_file():
            check_sum(exported)
            return exported
        raise ConfigError(
            "load.checkpoint must be the output folder of a study, a checkpoint, one of its best models, or a "
            f"{SUFFIX} file, but {path} {'is none of these' if path.exists() else 'is not there'}"
        ) from error


def _as_torch_server(server: StreamServer) -> "TorchServer | None":
    # Without torch in the process there is no such server.
    if "torch" not in sys.modules:
        return None
    from stream_server.server.torch_server import TorchServer

    return server if isinstance(server, TorchServer) else None


def _refuse_what_a_learner_ignores(config: "StudyConfig", server: StreamServer) -> None:
    owner = type(server).__name__
    assert config.load is not None
    if config.load.what == "model+optimizer":
        raise ConfigError(
            f'load.what must be "model" or "all" for {owner}, which is no TorchServer: its state_dict is one whole'
        )
    if not config.load.strict:
        raise ConfigError(f"load.strict must be left out for {owner}, whose own load_state_dict decides what fits")


def _load_learner(config: "StudyConfig", server: StreamServer, source: SavedModel | Path) -> None:
    if isinstance(source, SavedModel):
        load_user_state(Path(source.folder), server, allow_pickle=config.checkpoint.allow_pickle)
        return
    try:
        state = nested(read_tensors(source, as_torch=False))
    except (OSError, ValueError) as error:
        raise ConfigError(f"load.checkpoint cannot be read: {error}") from error
    call_user(f"{type(server).__name__}.load_state_dict", server.load_state_dict, state)


def _load_torch(config: "StudyConfig", server: "TorchServer", step: Step, source: SavedModel) -> list[str]:
    from stream_server.server.torch_state import restored
    from stream_server.server.torch_warm_start import load_model, load_optimizers

    load = config.load
    assert load is not None
    state = read_state(Path(source.folder) / MODEL)
    if not state.get("model"):
        raise ConfigError(
            f"load.checkpoint: there is no torch model in {source.folder}, which {type(server).__name__} needs"
        )
    if load.what != "model" and "optimizers" not in state:
        raise ConfigError(f'load.what must be "model", for {source.folder} is one of the best models, and only a model')
    model = restored(state.get("evaluated", state["model"]))
    left_out = config.checkpoint.exclude
    skipped = load_model(server, model, source=source.folder, strict=load.strict, left_out=left_out)
    if skipped and load.what != "model":
        raise ConfigError(
            f'load.what must be "model", for the optimizers in {source.folder} are those of a model that does not fit '
            f"as a whole: {'; '.join(skipped)}"
        )
    if load.what == "model+optimizer":
        load_optimizers(server, state, source=source.folder)
    elif load.what == "all":
        _load_all(config, server, step, source, state)
    return skipped


def _load_all(config: "StudyConfig", server: StreamServer, step: Step, source: SavedModel, state: Any) -> None:
    try:
        step.load_state_dict(state)
    except UserCodeError as error:
        raise ConfigError(
            f"load.checkpoint: the optimizers and schedulers in {source.folder} do not fit those of "
            f'{type(server).__name__} ({error.__cause__}). Make the same ones, or set load.what to "model"'
        ) from error
    load_user_state(Path(source.folder), server, allow_pickle=config.checkpoint.allow_pickle)


def _load_normalization(source: SavedModel, normalization: Normalization) -> None:
    folder = Path(source.folder)
    # One of the best models has the state of the behaviours beside it.
    file = folder / STUDY if (folder / STUDY).is_file() else folder / MODEL
    state = read_state(file).get("callbacks", {}).get(Normalization.__name__)
    if state is not None:
        normalization.load_state_dict(state)
