"""What one rank has received: all of it at one moment, and in numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stream_server.buffers import Frozen
from stream_server.server.account import Received
from stream_server.server.validation_store import HeldOutRows


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceptionSnapshot:
    """All that this rank has received, at one moment: what to save, and what to tell the clients once it is committed.

    `state` is plain; the rows of `buffer` are read later, those of `validation` never change. `roster` is rank 0's.
    `sync_record` puts on disk what is recorded so far, and says where that ends.
    """

    buffer: Frozen
    validation: HeldOutRows
    state: dict[str, Any]
    roster: dict[str, Any] | None = None
    marks: Mapping[bytes, int] = field(default_factory=dict)
    sync_record: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceptionAccount:
    """What one rank has received: per simulation, and what was refused by reason. `withdrawn` were not yet trained."""

    intake: dict[int, Received]
    duplicates: int
    withdrawn: int
    refused: dict[str, int]
