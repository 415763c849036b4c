"""The file by which ranks on other nodes find the launcher: the addresses of its sockets, and the keys they ask for."""

from pathlib import Path
from typing import Self

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages.client import Text
from stream_server.messages.connection import KeyFile
from stream_server.messages.curve import KeyPair


class LauncherEndpoint(KeyFile, frozen=True, kw_only=True):
    """The addresses at which a launcher on `host` listens for ranks on other nodes.

    Rank 0's messages come to `link`, signs of life to `alive`. Both ends of a connection have the same `keys`.
    """

    host: Text
    link: Text
    alive: Text
    keys: KeyPair

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read back what `write` wrote.

        Raises:
            ConfigError: there is no such file, no launcher wrote it, or others can have written it or read its key.
        """
        try:
            return cls.read_trusted(path)
        except OSError as error:
            raise ConfigError(
                f"{path} of stream-launcher cannot be read on this node ({error.strerror}): study.output_dir must be "
                "on a file system that all nodes see"
            ) from error
        except MalformedMessage as error:
            raise ConfigError(f"{path} was not written by a stream-launcher of this version: {error}") from error
