"""The folder, the files, the environment and the command line of one attempt of a simulation."""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stream_server.config.placeholders import PLACEHOLDER
from stream_server.failpoints import failpoint
from stream_server.launcher.backends.backend import (
    IDENTITY,
    LOG_FILE,
    WORKER_END_FILE,
    WORKER_START_FILE,
    JobSpec,
)
from stream_server.machine.run_folder import attempt_folder
from stream_server.messages.connection import NEXT_VARIABLE, ConnectionFile
from stream_server.messages.curve import KeyPair
from stream_server.storage import disk

CONNECTION_FILE = "connection.json"
NEXT_FILE = "next.txt"
READERS = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
# A shell's ${NAME} is none of ours.
FILLED_IN = re.compile(r"(?<!\$)" + PLACEHOLDER.pattern)

Value = float | int | str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFolders:
    """Knows where the attempts of a study lie, and prepares them.

    `environment` is what every simulation gets; what is particular to an attempt is added. `whole` are the parameters
    that are whole numbers.
    """

    command: tuple[str, ...]
    templates: tuple[Path, ...]
    environment: Mapping[str, str]
    seed: int
    study_dir: Path
    output_dir: Path
    whole: frozenset[str] = frozenset()

    def folder(self, simulation: int, attempt: int) -> Path:
        return attempt_folder(self.output_dir, simulation, attempt)

    def log(self, simulation: int, attempt: int) -> Path:
        return self.folder(simulation, attempt) / LOG_FILE

    def free_number(self, simulation: int, attempt: int) -> int:
        """The first number from `attempt` on that no attempt in the output folder has."""
        while disk.exists(self.folder(simulation, attempt)):
            attempt += 1
        return attempt

    def prepare(
        self,
        simulation: int,
        attempt: int,
        parameters: Mapping[str, float],
        connection: ConnectionFile,
        keys: KeyPair | None,
    ) -> JobSpec:
        """Make the folder of an attempt, its connection file and rendered templates.

        Raises:
            OSError: the folder cannot be written, or is there already; or a template cannot be read.
            ValueError: a template is not text, or asks for a format that its value does not have.
        """
        if not disk.is_in_place(self.output_dir):
            raise OSError(errno.ESTALE, f"{self.output_dir} is another folder now: give that of this run its name back")
        folder = self.folder(simulation, attempt)
        disk.make_folder(folder.parent)
        os.mkdir(disk.place_of(folder))
        file = folder / CONNECTION_FILE
        security = connection.security
        if security is not None and keys is not None:
            security = msgspec.structs.replace(security, client_public_key=keys.public, client_secret_key=keys.secret)
        msgspec.structs.replace(
            connection, simulation=simulation, attempt=attempt, parameters=dict(parameters), security=security
        ).write(file)
        given: dict[str, Value] = {
            name: int(value) if name in self.whole else value for name, value in parameters.items()
        }
        values = placeholders(given, simulation=simulation, attempt=attempt, seed=self.seed, study_dir=self.study_dir)
        rendered = {template: self._render(template, folder, values) for template in self.templates}
        identity = (str(file), str(simulation), str(attempt), str(simulation))
        environment = {**self.environment, **dict(zip(IDENTITY, identity, strict=True))}
        line = arguments(self.command, values, study_dir=self.study_dir, rendered=rendered)
        return JobSpec(command=tuple(line), environment=environment, folder=folder, marks=frozenset({str(file)}))

    def worker(self, specs: Sequence[JobSpec]) -> JobSpec:
        """The job of the first of these, whose program computes the others after it.

        Raises:
            OSError: the list of the others cannot be written.
        """
        first = specs[0]
        file = first.folder / NEXT_FILE
        disk.swap_private_file(file, "".join(f"{spec.folder / CONNECTION_FILE}\n" for spec in specs[1:]).encode())
        for spec in specs[1:]:
            (spec.folder / LOG_FILE).symlink_to(os.path.relpath(first.folder / LOG_FILE, spec.folder))
        return replace(first, environment={**first.environment, NEXT_VARIABLE: str(file)})

    def worker_moved_on(self, finished: tuple[int, int], following: tuple[int, int] | None) -> None:
        """Leave the time at which a worker was done with an attempt and came to the following one of its list."""
        # A folder that cannot be written or was removed costs a bar of the timeline.
        with contextlib.suppress(OSError):
            (self.folder(*finished) / WORKER_END_FILE).touch()
            if following is not None:
                (self.folder(*following) / WORKER_START_FILE).touch()

    def reconnect(self, simulation: int, attempt: int, connection: ConnectionFile) -> None:
        """Tell a running attempt where the server is now; its keys and parameters stay what they are.

        Raises:
            ConfigError: its connection file cannot be read.
            OSError: it cannot be replaced.
        """
        file = self.folder(simulation, attempt) / CONNECTION_FILE
        before, security = ConnectionFile.read(file), connection.security
        if before.security is not None and security is not None:
            security = msgspec.structs.replace(before.security, server_public_key=security.server_public_key)
        now = msgspec.structs.replace(
            connection,
            simulation=before.simulation,
            attempt=before.attempt,
            parameters=before.parameters,
            security=security,
        )
        if now != before:
            failpoint("launcher.before_reconnect")
            now.write(file)

    def touch(self, simulation: int, attempt: int) -> None:
        """Touch its connection file, which its client takes for a word: the next server will come."""
        with contextlib.suppress(OSError):
            os.utime(self.folder(simulation, attempt) / CONNECTION_FILE)

    def _render(self, template: Path, folder: Path, values: Mapping[str, Value]) -> Path:
        inside = template.is_relative_to(self.study_dir)
        target = folder / (template.relative_to(self.study_dir) if inside else template.name)
        disk.make_folder(target.parent)
        disk.write_file(target, render(disk.read_text(template), values).encode())
        if template.stat().st_mode & stat.S_IXUSR:
            # Those who may read it may execute it: the mode of the template would undo the umask.
            mode = target.stat().st_mode
            target.chmod(mode | (mode & READERS) >> 2)
        return target


def placeholders(
    parameters: Mapping[str, Value], *, simulation: int, attempt: int, seed: int, study_dir: Path
) -> dict[str, Value]:
    """Return what may stand in braces, by name. `{seed}` is the simulation's own, the same in every attempt."""
    return {
        **parameters,
        "simulation": simulation,
        "attempt": attempt,
        "seed": simulation_seed(seed, simulation),
        "study_dir": str(study_dir),
    }


def simulation_seed(seed: int, simulation: int) -> int:
    """A number from 0 to 2³¹ − 1 that depends on the study's seed and the simulation only."""
    digest = hashlib.sha256(f"{seed}/{simulation}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def render(text: str, values: Mapping[str, Value]) -> str:
    """`text` with each `{name}` and `{name:format}` of `values` filled in; all other braces stay."""

    def fill(match: re.Match[str]) -> str:
        name, format_spec = match.groups()
        return format(values[name], format_spec or "") if name in values else match.group()

    return FILLED_IN.sub(fill, text)


def arguments(
    command: Sequence[str], values: Mapping[str, Value], *, study_dir: Path, rendered: Mapping[Path, Path]
) -> list[str]:
    """The command line of an attempt, its placeholders filled in.

    An element that names a file of the study's folder becomes absolute, for each attempt runs in a folder of its own;
    one that names a template becomes the file `rendered` from it.
    """
    return [_element(render(element, values), study_dir, rendered) for element in command]


def _element(element: str, study_dir: Path, rendered: Mapping[Path, Path]) -> str:
    path = study_dir / element
    if path in rendered:
        return str(rendered[path])
    return str(path) if element and path.is_file() else element
