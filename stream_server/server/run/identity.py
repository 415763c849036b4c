"""The identity of a run: the name under which its processes know each other, and its keys."""

import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from stream_server.errors import ConfigError, MalformedMessage
from stream_server.messages import codec
from stream_server.messages.connection import require_trusted
from stream_server.messages.curve import KeyPair
from stream_server.storage.disk import swap_private_file
from stream_server.storage.typed import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Made by rank 0 and the same on all ranks.

    `study` is the same in all incarnations. `server_keys` are those of the server's sockets, `operator_keys` those in
    the run's operator.json, and `attaching_keys` those in the study's own connection file, for simulations that nobody
    launched: None when `network.security` is none.
    """

    study: str
    incarnation: int
    started: str
    server_keys: KeyPair = field(repr=False)
    operator_keys: KeyPair = field(repr=False)
    attaching_keys: KeyPair | None = field(repr=False)

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

    def write(self, path: Path) -> None:
        """Write the file for the other ranks, which only its owner may read. Rank 0."""
        swap_private_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: Path, incarnation: int) -> Self:
        """Read what rank 0 wrote in this incarnation.

        Raises:
            ConfigError: this node does not see the file, or others can have written it or read its keys.
        """
        try:
            with path.open("rb") as opened:
                status, text = os.fstat(opened.fileno()), opened.read()
            require_trusted(status, path, holds_key=True)
            identity = typed(cls, codec.parse(text))
        except (OSError, MalformedMessage, TypeError) as error:
            raise ConfigError(_not_shared(path, str(error))) from error
        if identity.incarnation != incarnation:
            raise ConfigError(_not_shared(path, f"it is of start {identity.incarnation}, not {incarnation}"))
        return identity


def _not_shared(path: Path, why: str) -> str:
    return (
        f"{path}, by which rank 0 gives the other ranks their keys, cannot be read on this node ({why}): "
        "study.output_dir must be on a file system that all nodes see"
    )
