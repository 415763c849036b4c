"""The connection file: where a study is, and how a simulation gets in."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from stream_server.client_api.connection_rules import check
from stream_server.disk import swap_private_file
from stream_server.errors import ConfigError

ENVIRONMENT_VARIABLE = "STREAM_CONNECTION"
ALONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """CURVE keys as Z85 text: the server's public key, and a key pair that the server lets in."""

    server_public_key: str
    client_public_key: str
    client_secret_key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionFile:
    """What a client must know before its first word.

    `control` lists the addresses of rank 0, ipc first; `host` is the node on which the ipc ones mean
    something. `simulation` None lets the server choose one. `security` None sends in the clear.
    """

    study: str
    epoch: int
    host: str
    control: tuple[str, ...]
    simulation: int | None = None
    attempt: int = 0
    parameters: dict[str, float] | None = None
    security: Security | None = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Put the file in place in one stroke; only its owner may read it, since it holds a secret key."""
        swap_private_file(Path(path), json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "ConnectionFile":
        """Read back what `write` wrote.

        Raises:
            ConfigError: there is no such file, or it is none of a study.
        """
        try:
            content = json.loads(Path(path).read_text(), parse_constant=_refuse_constant)
        except OSError as error:
            raise ConfigError(f"cannot read the connection file {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not a connection file: {error}") from error
        try:
            return cls.from_dict(content)
        except ValueError as error:
            raise ConfigError(f"{path} is not a connection file of this version: {error}") from error

    @classmethod
    def from_dict(cls, content: Any) -> "ConnectionFile":
        """Made from the parsed JSON.

        Raises:
            ValueError: a key is missing, unknown or not of its type.
        """
        check(content)
        security = content.get("security")
        return cls(
            **{
                **content,
                "control": tuple(content["control"]),
                "security": None if security is None else Security(**security),
            }
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def find(connection: str | os.PathLike[str] | None) -> Path | None:
    """The path that the caller names, or else the environment; None to run alone.

    Raises:
        ConfigError: neither names one.
    """
    if connection is None:
        connection = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if os.fspath(connection) == ALONE:
        return None
    if not os.fspath(connection):
        raise ConfigError(
            f"no study to connect to: {ENVIRONMENT_VARIABLE} is not set, as it is for simulations that a study starts. "
            f"Pass the path of the study's connection.json, or set {ENVIRONMENT_VARIABLE}={ALONE} to run alone"
        )
    return Path(connection)
