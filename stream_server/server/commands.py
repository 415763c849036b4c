"""What the main thread tells the receiver."""

from collections.abc import Mapping
from dataclasses import dataclass

from stream_server.launcher import link


@dataclass(frozen=True, kw_only=True, slots=True)
class StopStudy:
    """Main to receiver: nothing more is wanted from any simulation; a job has `grace_s` to end by itself."""

    reason: str
    grace_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """Main to rank 0's receiver, first: tell the launcher this plan, and all ranks what is over already."""

    plan: link.Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """Main to receiver: the checkpoint of which `marks` was taken is committed, as this generation."""

    marks: Mapping[bytes, int]
    generation: int
    batches: int


Command = Begin | StopStudy | Committed | link.Leaving
