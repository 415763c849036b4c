"""The file by which ranks on other nodes find the launcher: the addresses of its sockets, and the keys they ask for."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages import codec
from stream_server.messages.client import Text
from stream_server.messages.connection import require_trusted
from stream_server.messages.curve import KeyPair
from stream_server.storage.disk import swap_private_file
from stream_server.storage.typed import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherPlace:
    """The addresses at which a launcher on `host` listens for ranks on other nodes.

    Rank 0's messages come to `link`, signs of life to `alive`. Both ends of a connection have the same `keys`.
    """

    host: Text
    link: Text
    alive: Text
    keys: KeyPair

    def write(self, path: Path) -> None:
        """Write the file atomically; only its owner may read it, since it holds a secret key."""
        swap_private_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read back what `write` wrote.

        Raises:
            ConfigError: there is no such file, it is none of a launcher, or others can have written it or read its key.
        """
        try:
            with path.open("rb") as opened:
                status, text = os.fstat(opened.fileno()), opened.read()
            place = typed(cls, codec.parse(text))
        except OSError as error:
            raise ConfigError(
                f"{path} of stream-launcher cannot be read on this node ({error.strerror}): study.output_dir must be "
                "on a file system that all nodes see"
            ) from error
        except (MalformedMessage, TypeError) as error:
            raise ConfigError(f"{path} was not written by a stream-launcher of this version: {error}") from error
        require_trusted(status, path, holds_key=True)
        return place
