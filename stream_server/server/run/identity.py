"""The identity of a run: the name under which its processes know each other, and its keys."""

import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stream_server.messages.curve import KeyPair


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

    def to_json(self) -> dict[str, Any]:
        """Plain values for the other ranks."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        pairs = {
            name: plain[name] and KeyPair(**plain[name]) for name in ("server_keys", "operator_keys", "attaching_keys")
        }
        return cls(**{**plain, **pairs})
