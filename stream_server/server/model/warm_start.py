"""The warm start: a fresh study begins with the model that another one has trained, or looks at it on its way.

Why: docs/decisions/0098-newest-weights.md
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.folder import MODEL, STUDY
from stream_server.server.checkpoint.user_state import load_user_state, read_learned
from stream_server.server.model.model_export import MODEL_FILE, STUDY_FILE, bare_name
from stream_server.server.model.saved_model import SavedModel, find_saved_model
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.framework import Framework, Step, framework_of
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer, left_out_by_filter
from stream_server.storage.checksums import check_sum
from stream_server.storage.plain_state import from_bytes, read_state, to_bytes
from stream_server.storage.tensor_file import SUFFIX, nested, read_tensors
from stream_server.storage.typed import listed
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

_log = logging.getLogger(__name__)


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
    assert load.checkpoint is not None
    source = find_source(Path(load.checkpoint))
    if isinstance(source, Path) and load.what != "model":
        raise ConfigError(f'load.what must be "model", for there is nothing but a model in {source}')
    _check_order(server, source)
    framework = framework_of(server)
    skipped: list[str] = []
    if not framework.trains_model:
        _refuse_what_a_plain_server_ignores(config, server)
        _load_plain_server(config, server, source)
    elif isinstance(source, Path):
        skipped = _load_weights(server, _read_model(source, server), source=str(source), strict=load.strict)
    else:
        skipped = _load_saved(config, server, framework, step, source)
    if load.what == "all" and isinstance(source, SavedModel):
        _load_normalization(source, normalization)
    where = source if isinstance(source, Path) else f"{source.folder}, after batch {source.batches}"
    rest = f"; skipped: {'; '.join(skipped)}" if skipped else ""
    changes = "".join(f"; {change}" for change in step.changes)
    return f"the study starts from {where} ({load.what}){rest}{changes}"


class NewestWeights:
    """Reads the newest weights of other runs, rank 0 for all. Main thread.

    Attributes:
        quiesce: ends what other threads do with older ones.
    """

    def __init__(self, *, study_dir: Path, ranks: Ranks, framework: Framework) -> None:
        self._study_dir = study_dir
        self._ranks = ranks
        self._framework = framework
        self._warned: dict[Path, str] = {}
        self.quiesce: Callable[[], None] = lambda: None

    def __call__(self, path: Path) -> dict[str, Any]:
        """The weights by name, the same on all ranks; empty where they cannot be read. Collective."""
        data, problem = b"", ""
        if self._ranks.rank == 0:
            try:
                data = _encoded(find_source(self._study_dir / path, "the path"), self._framework)
            except (ConfigError, DamagedCheckpoint, OSError, LookupError) as error:
                problem = f"newest_weights({str(path)!r}) gives nothing: {error}"
            if problem and problem != self._warned.get(path):
                _log.warning("%s", problem)
            self._warned[path] = problem
        data = self._ranks.broadcast_bytes(data)
        self.quiesce()
        weights = self._framework.restored(from_bytes(data)) if data else {}
        return {bare_name(name): value for name, value in weights.items()}


def _encoded(source: SavedModel | Path, framework: Framework) -> bytes:
    if isinstance(source, Path):
        return to_bytes(framework.plain(_read(source, as_torch=True, what="the path"), str(source)))
    _log.info("weights are read of %s, after batch %d", source.folder, source.batches)
    state = read_learned(Path(source.folder))
    return to_bytes(state.get("evaluated", state["model"]))


def find_source(path: Path, what: str = "load.checkpoint") -> SavedModel | Path:
    """Find what `load.checkpoint`, or `what` else, names: a checkpoint, or the .safetensors file of a model.

    Raises:
        ConfigError: there is neither.
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
            f"{what} must be the output folder of a study, a checkpoint, one of its best models, or a "
            f"{SUFFIX} file, but {path} {'is none of these' if path.exists() else 'is not there'}"
        ) from error


def _check_order(server: StreamServer, source: SavedModel | Path) -> None:
    """Refuse a model that was trained with the same parameters in another order: each would be taken for another."""
    earlier, order = _parameters_of(source), list(server.parameter_names)
    if earlier != order and sorted(earlier) == sorted(order):
        where = source if isinstance(source, Path) else source.folder
        raise ConfigError(
            f"parameters.bounds must have the order of the study that trained the model in {where}, which is "
            f"{', '.join(earlier)}, but is {', '.join(order)}: the model would take one parameter for another"
        )


def _parameters_of(source: SavedModel | Path) -> list[str]:
    """The names of the parameters that a model was trained with, in their order; none if that is not known."""
    if isinstance(source, SavedModel):
        state = {} if source.checkpoint is None else read_state(Path(source.checkpoint) / STUDY)
        return list(state.get("parameters", ()))
    try:
        return [*json.loads((source.parent / STUDY_FILE).read_text())["parameters"]["bounds"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _refuse_what_a_plain_server_ignores(config: "StudyConfig", server: StreamServer) -> None:
    owner = type(server).__name__
    if config.load.what == "model+optimizer":
        raise ConfigError(
            f'load.what must be "model" or "all" for {owner}, which is no TorchServer: its state_dict is one whole'
        )
    if not config.load.strict:
        raise ConfigError(f"load.strict must be left out for {owner}, whose own load_state_dict decides what fits")


def _load_plain_server(config: "StudyConfig", server: StreamServer, source: SavedModel | Path) -> None:
    if isinstance(source, SavedModel):
        load_user_state(Path(source.folder), server, allow_pickle=config.checkpoint.allow_pickle)
        return
    arrays = _read(source, as_torch=False)
    try:
        state = nested(arrays)
    except ValueError as error:
        raise ConfigError(f"load.checkpoint cannot be read: {source}: {error}") from error
    call_user(f"{type(server).__name__}.load_state_dict", server.load_state_dict, state)


def _read(source: Path, *, as_torch: bool, what: str = "load.checkpoint") -> dict[str, Any]:
    try:
        return read_tensors(source, as_torch=as_torch)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error


class _ByBareName(dict[str, Any]):
    """Tensors of a model by their names without what `torch.compile` puts into them, found by either."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(bare_name(name), default)


def _own(server: Any) -> _ByBareName:
    return _ByBareName({bare_name(name): value for name, value in server.model.state_dict().items()})


def _read_model(source: Path, server: Any) -> dict[str, Any]:
    """The tensors of a file; of those that the ranks share out in the model of this server, this rank's rows."""
    from stream_server.server.training.torch.shards import is_sharded, read_like

    own = _own(server)
    if not any(map(is_sharded, own.values())):
        return _read(source, as_torch=True)
    try:
        return read_like(source, own)
    except (OSError, ValueError) as error:
        raise ConfigError(f"load.checkpoint cannot be read: {error}") from error


def _load_saved(config: "StudyConfig", server: Any, framework: Framework, step: Step, source: SavedModel) -> list[str]:
    load = config.load
    state = read_learned(Path(source.folder))
    if not state.get("model"):
        raise ConfigError(
            f"load.checkpoint: there is no {server.framework} model in {source.folder}, which {type(server).__name__} "
            "needs"
        )
    if load.what != "model" and "optimizers" not in state:
        raise ConfigError(f'load.what must be "model", for {source.folder} is one of the best models, and only a model')
    model = framework.restored(state.get("evaluated", state["model"]), _own(server))
    names = [bare_name(name) for name, _ in server.model.named_parameters(remove_duplicate=False)]
    matching = {name for name in names if any(fnmatchcase(name, it) for it in config.checkpoint.exclude)}
    left_out = matching.union(left_out_by_filter(server, names))
    skipped = _load_weights(server, model, source=source.folder, strict=load.strict, left_out=left_out)
    step.compare_constants(state)
    if skipped and load.what != "model":
        raise ConfigError(
            f'load.what must be "model", for the optimizers in {source.folder} are those of a model that does not fit '
            f"as a whole: {'; '.join(skipped)}"
        )
    if load.what == "model+optimizer":
        _load_optimizers(server, state, source=source.folder, hyperparameters=load.hyperparameters)
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
    # One of the best models has the states of built-in callbacks beside it.
    file = folder / STUDY if (folder / STUDY).is_file() else folder / MODEL
    state = read_state(file, deferred=True).get("callbacks", {}).get(Normalization.__name__)
    if state is not None:
        normalization.load_state_dict(state)


def _load_weights(
    server: Any, tensors: Mapping[str, Any], *, source: str, strict: bool, left_out: Collection[str] = ()
) -> list[str]:
    """Take tensors by name into the model of a server, on every rank; those in `left_out` may be missing.

    Returns:
        The names that were skipped, each with the reason; there are none if `strict`.

    Raises:
        ConfigError: nothing fits, or names or shapes differ and `strict` says that they must not.
    """
    own = {bare_name(name): (name, value) for name, value in server.model.state_dict().items()}
    saved = {bare_name(name): value for name, value in tensors.items()}
    fitting = {
        own[name][0]: value for name, value in saved.items() if name in own and _shape(value) == _shape(own[name][1])
    }
    wanted = {name: value for name, (_, value) in own.items() if name in saved or name not in left_out}
    problems = _problems(wanted, saved)
    if problems and (strict or not fitting):
        text = f"load.checkpoint: {source} does not fit the model of {type(server).__name__}: {'; '.join(problems)}"
        advice = "Make a model of the same names and shapes" + (", or set load.strict to false" if fitting else "")
        raise ConfigError(f"{text}. {advice}")
    server.model.load_state_dict(fitting, strict=False)
    return problems


def _load_optimizers(server: Any, state: Mapping[str, Any], *, source: str, hyperparameters: str) -> None:
    """Take the moments of the optimizers of a step, and what they are set to, such as the learning rate, if "saved".

    Raises:
        ConfigError: they are of other optimizers.
    """
    from stream_server.server.training.torch.model import check_kinds, restored_optimizers

    own = server.optimizer if isinstance(server.optimizer, list | tuple) else [server.optimizer]
    try:
        check_kinds(state["kinds"]["optimizers"], own, "optimizer")
        for optimizer, its_state in zip(own, restored_optimizers(server, state["optimizers"]), strict=True):
            settings = [
                {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
            ]
            optimizer.load_state_dict(its_state)
            if hyperparameters == "new":
                for group, its_settings in zip(optimizer.param_groups, settings, strict=True):
                    group.update(its_settings)
    except (ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(
            f"load.checkpoint: the optimizers in {source} do not fit those of {type(server).__name__} ({error}). Make "
            'the same ones, or set load.what to "model"'
        ) from error


def _problems(own: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    only_own = [name for name in own if name not in saved]
    only_saved = [name for name in saved if name not in own]
    other_shape = [
        f"{name} ({_describe(saved[name])} there, {_describe(own[name])} in the model)"
        for name in own
        if name in saved and _shape(saved[name]) != _shape(own[name])
    ]
    kinds = (("only in the model", only_own), ("only there", only_saved), ("of another shape", other_shape))
    return [f"{kind}: {listed(names)}" for kind, names in kinds if names]


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if hasattr(value, "shape") else None


def _describe(value: Any) -> str:
    shape = _shape(value)
    return type(value).__name__ if shape is None else " × ".join(map(str, shape)) or "a number"
