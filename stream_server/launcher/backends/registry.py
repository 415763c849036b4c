"""Makes the backend that `launcher.backend` names."""

from stream_server.built_in import BACKENDS, load_named
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import Backend
from stream_server.launcher.backends.scheduler import JobKind
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


def load_server_backend(config: StudyConfig, name: str) -> Backend:
    """Make the backend of this name, which is one of a scheduler, for the jobs of a study's server.

    Raises:
        ConfigError: the commands of the scheduler are not here.
    """
    make = load_named(name, BACKENDS, config.study_dir, kind="server.backend")
    backend: Backend = make(config, JobKind.of_server(config))
    return backend


def check_backend(config: StudyConfig) -> None:
    """Let the backend that a study names say whether it would take the jobs of the simulations, if it can (`check`).

    Raises:
        ConfigError: it would not, and why; or there is no such backend.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    if config.simulation.command is not None:
        _check(config.launcher.backend, load_backend(config))


def check_server_backend(config: StudyConfig) -> None:
    """Let the scheduler that a study names say whether it would take the job of the server, if that is to be one.

    Raises:
        ConfigError: it would not, and why.
    """
    if config.server.backend != "local":
        _check(config.server.backend, load_server_backend(config, config.server.backend))


def _check(name: str, backend: Backend) -> None:
    check = getattr(backend, "check", None)
    if check is not None:
        call_user(name, check)
