"""Makes the backends that `launcher.backend` and `server.backend` name, and holds one of the user's to the protocol."""

import subprocess
from collections.abc import Collection, Mapping
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


def load_backend(config: StudyConfig, kind: JobKind, outage: Outage) -> Backend:
    """Make the backend of the simulations or of the server of a study.

    It is one of `BACKENDS`, of an installed package, or FILE.py:Class.

    Raises:
        ConfigError: there is no such file, module or class, it lacks a part of the protocol, its `outage` cannot be
            set, or the settings of the jobs are none of the scheduler, or its commands are not here.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    name, make = kind.backend, _named(config, kind)
    backend: Backend = call_user(name, _backend, make, config, kind)
    if missing := [part for part in PROTOCOL if not hasattr(backend, part)]:
        raise ConfigError(f"{kind.key}: {name} lacks {' and '.join(missing)} (docs/guide/backends.md)")
    try:
        backend.outage = outage
    except Exception as error:
        raise ConfigError(f"{kind.key}: `outage` of {name} cannot be set: {error} (docs/guide/backends.md)") from error
    return backend if name in BACKENDS else OwnBackend(name, backend)


def _named(config: StudyConfig, kind: JobKind) -> Any:
    return load_named(kind.backend, BACKENDS, config.study_dir, kind=kind.key)


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


def check_backends(config: StudyConfig, *, has_server: bool = False) -> None:
    """Let the backends that a study names say whether they would take the jobs, if they can (`check`).

    Where one `has_server`, it runs already.

    Raises:
        ConfigError: they would not, and why, or there is no such backend. Settings that the schedulers do not have are
            told at once.
        UserCodeError: the user's file or class raised, which is the cause.
    """
    kinds = [JobKind.of_server(config)] if config.server.backend != "local" and not has_server else []
    kinds += [JobKind.of_simulations(config)] if config.simulation.command is not None else []
    problems: list[Problem] = []
    for kind in kinds:
        if _is_scheduler(make := _named(config, kind)):
            problems += call_user(kind.backend, lambda make, kind: [*make.problems(kind)], make, kind)
    if problems:
        raise config_error("the study", problems)
    for kind in kinds:
        call_user(kind.backend, load_backend(config, kind, Outage()).check)
