"""The folder, the files, the environment and the command line of one attempt of a simulation."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.disk import swap_private_file
from stream_server.failpoints import failpoint
from stream_server.launcher import command
from stream_server.launcher.command import Value
from stream_server.launcher.job_spec import LOG_FILE, JobSpec

CONNECTION_FILE = "connection.json"
# What tells a simulation which one it is. The last is the name under which codes that were written for Melissa look.
IDENTITY = ("STREAM_CONNECTION", "STREAM_SIMULATION_ID", "STREAM_ATTEMPT", "MELISSA_SIMU_ID")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPair:
    """The CURVE keys of one attempt, as z85 text."""

    public: str
    secret: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempts:
    """Knows where the attempts of a study lie, and prepares them.

    `environment` is what every simulation gets; what is particular to an attempt is added.
    """

    command: tuple[str, ...]
    templates: tuple[Path, ...]
    environment: Mapping[str, str]
    seed: int
    study_dir: Path
    output_dir: Path

    def folder(self, simulation: int, attempt: int) -> Path:
        """Where an attempt runs."""
        return self.output_dir / "simulations" / str(simulation) / f"attempt-{attempt}"

    def log(self, simulation: int, attempt: int) -> Path:
        """What an attempt printed."""
        return self.folder(simulation, attempt) / LOG_FILE

    def free_number(self, simulation: int, attempt: int) -> int:
        """The first number from `attempt` on that no attempt in the output folder has."""
        while self.folder(simulation, attempt).exists():
            attempt += 1
        return attempt

    def prepare(
        self,
        simulation: int,
        attempt: int,
        parameters: Mapping[str, float],
        connection: Mapping[str, Any],
        keys: KeyPair | None,
    ) -> JobSpec:
        """Make the folder of an attempt, its connection file and rendered templates.

        Raises:
            OSError: the folder cannot be written, or is there already; or a template cannot be read.
            ValueError: a template is not text, or asks for a format that its value does not have.
        """
        folder = self.folder(simulation, attempt)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        file = folder / CONNECTION_FILE
        content = {**connection, "simulation": simulation, "attempt": attempt, "parameters": dict(parameters)}
        if keys is not None:
            content["security"] = _security(connection, keys)
        swap_private_file(file, json.dumps(content, indent=1).encode())
        values = command.placeholders(
            parameters, simulation=simulation, attempt=attempt, seed=self.seed, study_dir=self.study_dir
        )
        rendered = {template: self._render(template, folder, values) for template in self.templates}
        identity = (str(file), str(simulation), str(attempt), str(simulation))
        environment = {**self.environment, **dict(zip(IDENTITY, identity, strict=True))}
        line = command.arguments(self.command, values, study_dir=self.study_dir, rendered=rendered)
        return JobSpec(command=tuple(line), environment=environment, folder=folder, marks=frozenset({str(file)}))

    def reconnect(self, simulation: int, attempt: int, connection: Mapping[str, Any]) -> None:
        """Tell a running attempt where the server is now; its keys and parameters stay what they are.

        Raises:
            OSError: its connection file cannot be read or replaced.
            ValueError: it is none.
        """
        file = self.folder(simulation, attempt) / CONNECTION_FILE
        before = _read(file)
        own: dict[str, Any] = {name: before[name] for name in ("simulation", "attempt", "parameters") if name in before}
        content = {**connection, **own}
        if before.get("security") is not None and connection.get("security") is not None:
            server_key = connection["security"]["server_public_key"]
            content["security"] = {**before["security"], "server_public_key": server_key}
        if content != before:
            failpoint("launcher.before_reconnect")
            swap_private_file(file, json.dumps(content, indent=1).encode())

    def _render(self, template: Path, folder: Path, values: Mapping[str, Value]) -> Path:
        inside = template.is_relative_to(self.study_dir)
        target = folder / (template.relative_to(self.study_dir) if inside else template.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(command.render(template.read_text(encoding="utf-8"), values), encoding="utf-8")
        shutil.copymode(template, target)
        return target


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except RecursionError as error:
        raise ValueError(f"{file} is no connection file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("security"), dict | None):
        raise ValueError(f"{file} is no connection file")
    return content


def _security(connection: Mapping[str, Any], keys: KeyPair) -> dict[str, str]:
    return {
        "server_public_key": connection["security"]["server_public_key"],
        "client_public_key": keys.public,
        "client_secret_key": keys.secret,
    }
