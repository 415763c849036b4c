"""Loads the server class that a study names."""

import importlib
import importlib.util
import sys
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.stream_server import StreamServer


def load_server_class(config: StudyConfig) -> type[StreamServer]:
    """Import the class named by `server.class`: `FILE.py:Class` or `package.module:Class`.

    The folder of study.json is put on the import path, so that the user's files find each other.

    Raises:
        UserCodeError: the user's file raised while it was imported, which is the cause.
        ConfigError: what it names is no subclass of StreamServer, or lacks a method that the study needs.
    """
    where, _, name = config.server.class_.rpartition(":")
    sys.path.insert(0, str(config.study_dir))
    try:
        module = _load_file(config.study_dir / where) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"importing {where} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, StreamServer)):
        raise ConfigError(
            f"server.class must name a subclass of StreamServer or TorchServer, but {config.server.class_} is {found!r}"
        )
    missing = [method for method in _required(config, found) if not _defines(found, method)]
    if missing:
        raise ConfigError(f"{name} must define {' and '.join(missing)}, which this study needs")
    return found


def _required(config: StudyConfig, server_class: type[StreamServer]) -> list[str]:
    """The methods without which a study would fail at its first batch, or, worse, at its first validation."""
    formed = [] if _defines(server_class, "process_batch") else ["process_simulation_data"]
    validates = config.validation.simulations > 0 or _defines(server_class, "val_dataloader")
    return [*formed, "training_step", *(["validation_step"] if validates else [])]


def _defines(server_class: type[StreamServer], method: str) -> bool:
    return getattr(server_class, method) is not getattr(StreamServer, method)


def _load_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
