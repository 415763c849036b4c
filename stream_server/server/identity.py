"""Who a run is: the name under which its processes know each other, and its keys."""

import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from stream_server.server.access import KeyPair


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Made by rank 0 and the same on all ranks. Both key pairs are None when `network.security` is none.

    `server_keys` are those of the server's sockets, `attaching_keys` those in the study's own connection file,
    for simulations that nobody launched.
    """

    study: str
    epoch: int
    started: str
    server_keys: KeyPair | None = field(repr=False)
    attaching_keys: KeyPair | None = field(repr=False)

    @classmethod
    def make(cls, *, secure: bool) -> Self:
        """A new one, of the first epoch."""
        return cls(
            study=uuid.uuid4().hex,
            epoch=1,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            server_keys=KeyPair.make() if secure else None,
            attaching_keys=KeyPair.make() if secure else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for the other ranks."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        pairs = {name: plain[name] and KeyPair(**plain[name]) for name in ("server_keys", "attaching_keys")}
        return cls(**{**plain, **pairs})
