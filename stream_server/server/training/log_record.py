"""What is written at one log point, and what takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stream_server.server.training.histogram import Histogram

AXES = ("batch", "update", "sample", "wall_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is written at one log point: means over the ranks, merged histograms, PNG images of rank 0.

    `update` and `sample` count the updates and the samples trained so far, `wall_s` the seconds of training.
    """

    batch: int
    update: int = 0
    sample: int = 0
    wall_s: float
    values: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    figures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, float]:
        """Where the record stands, by the names of `AXES`."""
        return {"batch": self.batch, "update": self.update, "sample": self.sample, "wall_s": round(self.wall_s, 3)}


class Writer(Protocol):
    """A file or folder that takes records."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...
