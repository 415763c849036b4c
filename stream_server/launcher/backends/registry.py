"""Makes the backends that `launcher.backend` and `server.backend` name, and holds one of the user's to the protocol."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stream_server.built_in import BACKENDS, load_named
from stream_server.config import StudyConfig
from stream_server.config.problems import Problem, config_error
from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.backends.backend import Backend, JobSpec, JobState, JobStatus, Outage, SavedJob, SubmitError
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.scheduler import CommandScheduler, JobKind
from stream_server.user_code import call_user

IN_THE_PROTOCOL = (OSError, subprocess.SubprocessError, SubmitError)
PROTOCOL = ("query_interval_s", "submit", "cancel", "query", "reattach", "close")

MAX_SHOWN = 200


def load_backend(config: StudyConfig, outage: Outage) -> Backend:
    """Make the backend of a study's simulations; see `load_server_backend`."""
    return _made(config, config.launcher.backend, JobKind.of_simulations(config), outage)


def load_server_backend(config: StudyConfig, name: str, outage: Outage) -> Backend:
    """Make the backend of this name for the jobs of a study's server.

    It is one of `BACKENDS`, of an installed package, or FILE.py:Class.

    Raises:
        ConfigError: there is no such file, module or class, it lacks a part of the protocol, its `outage` cannot be
            set, or the settings of the jobs are none of the scheduler, or its commands are not here.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    return _made(config, name, JobKind.of_server(config), outage)


def _made(config: StudyConfig, name: str, kind: JobKind, outage: Outage) -> Backend:
    is_built_in = name in BACKENDS
    make = load_named(name, BACKENDS, config.study_dir, kind=kind.key)
    backend: Backend = call_user(name, _backend, make, config, kind)
    if missing := [part for part in PROTOCOL if not hasattr(backend, part)]:
        raise ConfigError(f"{kind.key}: {name} lacks {' and '.join(missing)} (docs/guide/backends.md)")
    try:
        backend.outage = outage
    except Exception as error:
        raise ConfigError(f"{kind.key}: `outage` of {name} cannot be set: {error} (docs/guide/backends.md)") from error
    return backend if is_built_in else OwnBackend(name, backend)


def _backend(make: Any, config: StudyConfig, kind: JobKind) -> Backend:
    if _is_scheduler(make):
        return BatchBackend(kind, make(kind))
    backend: Backend = make(config, kind)
    return backend


def _is_scheduler(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, CommandScheduler)


@cache
def schedulers() -> tuple[type[CommandScheduler], ...]:
    """The classes of the built-in batch schedulers, but not of those that packages register."""
    classes = [load_named(name, BACKENDS, Path(), kind="launcher.backend") for name in BACKENDS]
    return tuple(filter(_is_scheduler, classes))


class OwnBackend(Backend):
    """A backend of the user's; see `Backend`.

    What it raises or returns outside the protocol becomes a `UserCodeError` that names class and method.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend

    @property
    def query_interval_s(self) -> float:  # type: ignore[override]
        return self.backend.query_interval_s

    def check(self) -> None:
        if (check := getattr(self.backend, "check", None)) is not None:
            call_user(self.name, check)

    def submit(self, spec: JobSpec) -> str:
        return self._handle("submit", self._call("submit", spec))

    def cancel(self, handles: Collection[str]) -> None:
        self._call("cancel", handles)

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        found = self._call("query", handles)
        if not isinstance(found, Mapping):
            raise self._wrong("query", "a dict of a JobStatus for each handle", repr(found))
        for handle, status in found.items():
            if not isinstance(status, JobStatus) or not isinstance(status.state, JobState):
                raise self._wrong("query", "a JobStatus with a JobState for each handle", f"{status!r} for {handle!r}")
        return found

    def reattach(self, job: SavedJob) -> str:
        return self._handle("reattach", self._call("reattach", job))

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.backend, method)(*arguments)
        except IN_THE_PROTOCOL:
            raise
        except Exception as error:
            raise UserCodeError(f"{self.name}: {method} raised {type(error).__name__}: {error}") from error

    def _handle(self, method: str, handle: Any) -> str:
        if not isinstance(handle, str) or len(handle.splitlines()) != 1:
            raise self._wrong(method, "a handle, which is one line of text", repr(handle))
        return handle

    def _wrong(self, method: str, expected: str, found: str) -> UserCodeError:
        return UserCodeError(f"{self.name}: {method} must return {expected}, but returned {found[:MAX_SHOWN]}")


def check_backend(config: StudyConfig) -> None:
    """Let the backend that a study names say whether it would take the jobs of the simulations, if it can (`check`).

    Raises:
        ConfigError: it would not, and why; or there is no such backend.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    if config.simulation.command is not None:
        _check(config, [(config.launcher.backend, JobKind.of_simulations(config))])


def check_backends(config: StudyConfig) -> None:
    """Let the backends that a study names say the same, of the job of the server too if it is to be one.

    Raises:
        ConfigError, UserCodeError: as in `check_backend`; settings that the schedulers do not have are told at once.
    """
    server = (config.server.backend, JobKind.of_server(config))
    simulations = (config.launcher.backend, JobKind.of_simulations(config))
    named = [server] if config.server.backend != "local" else []
    _check(config, [*named, simulations] if config.simulation.command is not None else named)


def _check(config: StudyConfig, named: Sequence[tuple[str, JobKind]]) -> None:
    problems: list[Problem] = []
    for name, kind in named:
        make = load_named(name, BACKENDS, config.study_dir, kind=kind.key)
        if _is_scheduler(make):
            problems += call_user(name, lambda make, kind: [*make.problems(kind)], make, kind)
    if problems:
        raise config_error("the study", problems)
    for name, kind in named:
        call_user(name, _made(config, name, kind, Outage()).check)
