"""Gives a torch model that is set up the weights of another study."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError
from stream_server.server.model_export import bare_name
from stream_server.server.tensor_file import read_tensors
from stream_server.server.torch_server import TorchServer
from stream_server.server.torch_state import restored
from stream_server.server.training.torch_model import check_kinds


def load_tensors(server: TorchServer, path: Path, *, strict: bool) -> list[str]:
    """Take the model of a .safetensors file; gives what was skipped, as `load_model`.

    Raises:
        ConfigError: the file cannot be read, or does not fit.
    """
    try:
        tensors = read_tensors(path, as_torch=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"load.checkpoint cannot be read: {error}") from error
    return load_model(server, tensors, source=str(path), strict=strict)


def load_model(
    server: TorchServer, tensors: Mapping[str, Any], *, source: str, strict: bool, left_out: Sequence[str] = ()
) -> list[str]:
    """Take tensors by name into the model of a server, on every rank; those that match `left_out` may be missing.

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
    wanted = {
        name: value
        for name, (_, value) in own.items()
        if name in saved or not any(fnmatchcase(name, pattern) for pattern in left_out)
    }
    problems = _problems(wanted, saved)
    if problems and (strict or not fitting):
        text = f"load.checkpoint: {source} does not fit the model of {type(server).__name__}: {'; '.join(problems)}"
        advice = "Make a model of the same names and shapes" + (", or set load.strict to false" if fitting else "")
        raise ConfigError(f"{text}. {advice}")
    server.model.load_state_dict(fitting, strict=False)
    return problems


def load_optimizers(server: TorchServer, state: Mapping[str, Any], *, source: str) -> None:
    """Take the moments of the optimizers of a step; what they are set to, such as the learning rate, stays as it is.

    Raises:
        ConfigError: they are of other optimizers.
    """
    own = server.optimizer if isinstance(server.optimizer, list | tuple) else [server.optimizer]
    try:
        check_kinds(state["kinds"]["optimizers"], own, "optimizer")
        for optimizer, its_state in zip(own, restored(state["optimizers"]), strict=True):
            settings = [{key: it for key, it in group.items() if key != "params"} for group in optimizer.param_groups]
            optimizer.load_state_dict(its_state)
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
        f"{name} ({_described(saved[name])} there, {_described(own[name])} in the model)"
        for name in own
        if name in saved and _shape(saved[name]) != _shape(own[name])
    ]
    kinds = (("only in the model", only_own), ("only there", only_saved), ("of another shape", other_shape))
    return [f"{kind}: {', '.join(names)}" for kind, names in kinds if names]


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if hasattr(value, "shape") else None


def _described(value: Any) -> str:
    shape = _shape(value)
    return type(value).__name__ if shape is None else " × ".join(map(str, shape)) or "a number"
