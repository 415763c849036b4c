"""Where a server rank can be reached, and how its receiver is set up."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """The addresses of one server rank, the `ipc://` one first, which means something on `host` only.

    `data` is for clients; `control`, also for clients, and `peers`, for the other ranks, are rank 0's alone.
    """

    host: str
    data: tuple[str, ...]
    control: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be gathered over the ranks."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Endpoints":
        """Made from `to_dict`, also after JSON."""
        return cls(
            host=plain["host"],
            data=tuple(plain["data"]),
            control=tuple(plain["control"]),
            peers=tuple(plain["peers"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverSettings:
    """What a receiver needs to know beside its collaborators.

    `ipc_folder` is private to this node (0700) and its path short: one of a socket has at most 107 bytes. `host` is
    the name that other nodes know this one by; `interface` the address or the name of the network interface to
    listen on, "*" for all; `ports` the range to choose from, None for any. `link` is the launcher's address (rank 0).
    """

    ipc_folder: Path
    host: str
    interface: str = "*"
    ports: tuple[int, int] | None = None
    link: str | None = None
    nonfinite: str = "reject"
