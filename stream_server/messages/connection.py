"""The connection file: the addresses of a study, and the keys with which a simulation connects."""

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages import codec
from stream_server.messages.client import U32, Addresses, Count, Parameters, Text
from stream_server.storage import disk
from stream_server.storage.ownership import OTHERS, OTHERS_WRITE, is_ours
from stream_server.storage.typed import Length, typed

ENVIRONMENT_VARIABLE = "STREAM_CONNECTION"
ALONE = "none"
MAX_BYTES = 1 << 20
# Names a file with the paths of further connection files, one a line: of what a worker computes after its first one.
NEXT_VARIABLE = "STREAM_NEXT"
Key = Annotated[str, Length(40, 40)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """CURVE keys as Z85 text: the server's public key, and a key pair that the server lets in."""

    server_public_key: Key
    client_public_key: Key
    client_secret_key: Key = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionFile:
    """The information that a client needs to send its first message.

    `control` lists the addresses of rank 0, ipc first; `host` is the node on which the ipc ones mean
    something. `simulation` None lets the server choose one. Without `security` nothing is encrypted.
    """

    study: Text
    incarnation: U32
    host: Text
    control: Addresses
    simulation: Count | None = None
    attempt: U32 = 0
    parameters: Parameters | None = None
    security: Security | None = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically; only its owner may read it, since it holds a secret key."""
        disk.swap_private_file(Path(path), json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, opener: disk.Opener = disk.ordinary) -> "ConnectionFile":
        """Read back what `write` wrote.

        Raises:
            ConfigError: there is no such file, it is none of a study, or others can have written it or read its key.
        """
        try:
            with open(path, "rb", opener=opener) as opened:
                status, text = os.fstat(opened.fileno()), disk.read_open(opened, os.fspath(path), max_bytes=MAX_BYTES)
            file = typed(cls, codec.parse(text))
        except OSError as error:
            raise ConfigError(f"cannot read the connection file {path}: {error.strerror}") from error
        except MalformedMessage as error:
            raise ConfigError(f"{path} is not a connection file: {error}") from error
        except TypeError as error:
            raise ConfigError(f"{path} is not a connection file of this version: {error}") from error
        require_trusted(status, path, holds_key=file.security is not None)
        return file


def require_trusted(status: os.stat_result, path: str | os.PathLike[str], *, holds_key: bool) -> None:
    """See that nobody else can have written where we are sent to, or read the key.

    Raises:
        ConfigError: somebody else can.
    """
    if not is_ours(status):
        raise ConfigError(f"{path} belongs to user {status.st_uid}: a connection file must be your own")
    if status.st_mode & (OTHERS if holds_key else OTHERS_WRITE):
        raise ConfigError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): a connection file must be yours "
            "alone, as chmod 600 makes it"
        )


def further_files() -> list[str]:
    """The connection files of what this process, a worker, computes after its first simulation.

    Raises:
        ConfigError: the list of them cannot be read.
    """
    file = os.environ.get(NEXT_VARIABLE)
    try:
        return disk.read_text(Path(file)).splitlines() if file else []
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {NEXT_VARIABLE}={file}: {why}") from error


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
