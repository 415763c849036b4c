"""The connection file: the addresses of a study, and the keys with which a simulation connects."""

import os
import stat
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages import codec
from stream_server.messages.client import U32, Addresses, Count, Parameters, Text
from stream_server.messages.codec import JsonObject
from stream_server.storage import disk
from stream_server.storage.ownership import OTHERS, OTHERS_WRITE, is_ours

ENVIRONMENT_VARIABLE = "STREAM_CONNECTION"
ALONE = "none"
MAX_BYTES = 1 << 20
# Names a file with the paths of further connection files, one a line: of what a worker computes after its first one.
NEXT_VARIABLE = "STREAM_NEXT"
Key = Annotated[str, Meta(min_length=40, max_length=40)]


class Security(JsonObject, frozen=True, kw_only=True):
    """CURVE keys as Z85 text: the server's public key, and a key pair that the server lets in."""

    server_public_key: Key
    client_public_key: Key
    client_secret_key: Key

    def __repr__(self) -> str:
        return f"Security(server_public_key={self.server_public_key!r}, client_public_key={self.client_public_key!r})"


class KeyFile(JsonObject, frozen=True, kw_only=True):
    """Contents of a file that may hold a secret key."""

    @property
    def holds_key(self) -> bool:
        return True

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically; only its owner may read it."""
        disk.swap_private_file(Path(path), msgspec.json.format(codec.encode(self), indent=1))

    @classmethod
    def read_trusted(cls, path: str | os.PathLike[str], *, opener: disk.Opener = disk.open_regular) -> Self:
        """Read back what `write` wrote.

        Raises:
            OSError: it cannot be read.
            MalformedMessage: it is another file.
            ConfigError: others can have written it or read its key.
        """
        with open(path, "rb", opener=opener) as opened:
            status, text = os.fstat(opened.fileno()), disk.read_open(opened, os.fspath(path), max_bytes=MAX_BYTES)
        file: Self = codec.decoder(cls)(text)
        _require_trusted(status, path, holds_key=file.holds_key)
        return file


class ConnectionFile(KeyFile, frozen=True, kw_only=True):
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

    @property
    def holds_key(self) -> bool:
        return self.security is not None

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, opener: disk.Opener = disk.open_regular) -> Self:
        """Read back what `write` wrote.

        Raises:
            ConfigError: there is no such file, it is no connection file, or others can have written it or read its key.
        """
        try:
            return cls.read_trusted(path, opener=opener)
        except OSError as error:
            raise ConfigError(f"cannot read the connection file {path}: {error.strerror}") from error
        except MalformedMessage as error:
            raise ConfigError(f"{path} is not a connection file of this version: {error}") from error


def _require_trusted(status: os.stat_result, path: str | os.PathLike[str], *, holds_key: bool) -> None:
    """Ensure that nobody else can have written where we are sent to, or read the key.

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
