"""The identity of a run: the name under which its processes know each other, and its keys."""

import uuid
from pathlib import Path
from typing import Self

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages.connection import KeyFile
from stream_server.messages.curve import KeyPair


class Identity(KeyFile, frozen=True, kw_only=True):
    """Made by rank 0, which writes it into a file for the other ranks; the same on all of them.

    `study` is the same in all incarnations. `server_keys` are those of the server's sockets, `operator_keys` those in
    the run's operator.json, and `attaching_keys` those in the study's own connection file, for simulations that nobody
    launched: None when `network.security` is none.
    """

    study: str
    incarnation: int
    started: str
    server_keys: KeyPair
    operator_keys: KeyPair
    attaching_keys: KeyPair | None

    @classmethod
    def make(cls, output_dir: Path, *, incarnation: int, started: str, secure: bool) -> Self:
        """Make the identity of one incarnation of the run in `output_dir`, which began at `started`, with new keys."""
        return cls(
            study=uuid.uuid5(uuid.NAMESPACE_URL, f"{output_dir} {started}").hex,
            incarnation=incarnation,
            started=started,
            server_keys=KeyPair.make(),
            operator_keys=KeyPair.make(),
            attaching_keys=KeyPair.make() if secure else None,
        )

    @classmethod
    def read(cls, path: Path, incarnation: int) -> Self:
        """Read what rank 0 wrote in this incarnation.

        Raises:
            ConfigError: this node does not see the file, or others can have written it or read its keys.
        """
        try:
            identity = cls.read_trusted(path)
        except (OSError, MalformedMessage) as error:
            raise ConfigError(_not_shared(path, str(error))) from error
        if identity.incarnation != incarnation:
            raise ConfigError(_not_shared(path, f"it is of start {identity.incarnation}, not {incarnation}"))
        return identity


def _not_shared(path: Path, why: str) -> str:
    return (
        f"{path}, by which rank 0 gives the other ranks their keys, cannot be read on this node ({why}): "
        "study.output_dir must be on a file system that all nodes see"
    )
