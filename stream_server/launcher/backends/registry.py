"""Makes the backend that `launcher.backend` names."""

from stream_server.built_in import BACKENDS, load_named
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import Backend
from stream_server.user_code import call_user

PROTOCOL = ("query_interval_s", "submit", "cancel", "query", "reattach", "close")


def load_backend(config: StudyConfig) -> Backend:
    """Make the backend that a study names: one of `BACKENDS`, or FILE.py:Class, called with the study's config.

    Raises:
        ConfigError: there is no such file, module or class, or it lacks a part of the protocol.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    name = config.launcher.backend
    make = load_named(name, BACKENDS, config.study_dir, kind="launcher.backend")
    backend: Backend = call_user(name, make, config)
    if missing := [part for part in PROTOCOL if not hasattr(backend, part)]:
        raise ConfigError(f"launcher.backend: {name} lacks {' and '.join(missing)} (docs/guide/backends.md)")
    return backend


def check_backend(config: StudyConfig) -> None:
    """Let the backend that a study names say whether it would take the jobs, if it can (`check`).

    Raises:
        ConfigError: it would not, and why; or there is no such backend.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    backend = load_backend(config)
    check = getattr(backend, "check", None)
    if check is not None:
        call_user(config.launcher.backend, check)
