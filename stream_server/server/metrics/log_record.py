"""The record of one log point, and the protocol of the writers that take it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stream_server.server.metrics.histogram import Histogram

AXES = ("batch", "update", "sample", "wall_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The record of one log point: means over the ranks, merged histograms, PNG images of rank 0.

    `update` and `sample` count the updates and the samples trained so far, `wall_s` the seconds of training.
    `is_log_point` is false of a validation, and of what was logged for a batch of its own, between two log points.
    """

    batch: int
    update: int = 0
    sample: int = 0
    wall_s: float
    is_log_point: bool = True
    values: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    figures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, float]:
        return {"batch": self.batch, "update": self.update, "sample": self.sample, "wall_s": round(self.wall_s, 3)}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """The run whose metrics a writer takes, as one start of the server opens it.

    Attributes:
        name: name of the study, `study.name`.
        id: the same in all starts of the study, and in no other study.
        folder: the folder `metrics` of the study, which exists.
        num_ranks: number of ranks of the server.
        after: last batch that stays. A study that is killed goes on from a checkpoint, and trains the batches behind it
            again: what earlier starts have written behind batch `after` must be dropped, if the writer can do so.
        validated: names of the validation after that batch that stay, too; the others are known again. None: all stay.
        settings: study.json with all its defaults, for a table of hyperparameters.
    """

    name: str = ""
    id: str = ""
    folder: Path
    num_ranks: int = 1
    after: int = 0
    validated: Collection[str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Writer(Protocol):
    """Takes the records of a run, in the training thread: `write` must not wait for a network.

    The constructor takes the `LoggedRun` as `run`; every other argument comes from study.json. A writer that raises is
    closed and gets no more records; the training goes on. One with a method `end(status, reason)` is told before it is
    closed how this start of the server ended: "finished", "interrupted" (saved, to go on later) or "failed", and why.
    """

    def write(self, record: Record) -> None:
        """Take a record. They come in the order of batches; a batch may have several."""
        ...

    def flush(self) -> None:
        """Hand over what was kept back: a checkpoint was committed, behind which a restarted study will not go."""
        ...

    def close(self) -> None:
        """Hand over what was kept back, and release everything; also after an error of `write`."""
        ...
