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
        ConfigError: what it names is no subclass of StreamServer.
    """
    where, _, name = config.server.class_.rpartition(":")
    sys.path.insert(0, str(config.study_dir))
    try:
        module = _load_file(config.study_dir / where) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        raise UserCodeError(f"importing {where} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, StreamServer)):
        raise ConfigError(
            f"server.class must name a subclass of StreamServer or TorchServer, but {config.server.class_} is {found!r}"
        )
    return found


def _load_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
