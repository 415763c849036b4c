"""The work that all ways have to do: samples of several simulations to batches of a training, each row checked."""

import json
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

READY = "ready"
LOOK_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Simulations that each send samples of one float32 field as fast as they can, each to be drawn `draws` times."""

    num_producers: int = 4
    num_samples: int = 2000
    num_values: int = 10_000
    batch_size: int = 10
    draws: int = 1

    @classmethod
    def from_environment(cls) -> "Work":
        """The work that `WORK` tells."""
        return cls(**json.loads(os.environ["WORK"]))

    def to_environment(self) -> dict[str, str]:
        return {"WORK": json.dumps(asdict(self))}

    @property
    def num_total(self) -> int:
        """Samples of all simulations."""
        return self.num_producers * self.num_samples

    @property
    def num_batches(self) -> int:
        """Batches that the training takes."""
        return self.num_total * self.draws // self.batch_size

    def num_allowed(self, num_samples: int) -> int:
        """Batches that may be drawn once so many samples have come: none before there are enough for one."""
        return 0 if num_samples < self.batch_size else num_samples * self.draws // self.batch_size

    def sample(self, producer: int, number: int) -> Array:
        """A field that holds one number everywhere, which no other sample has."""
        return np.full(self.num_values, producer * self.num_samples + number, np.float32)


class Judge:
    """The use of a batch by the training: it is looked at, and nothing else."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.num_batches = 0
        self.num_torn = 0

    def look(self, batch: Any) -> None:
        """Take a batch, of shape (rows, values)."""
        rows = np.asarray(batch)
        self.num_torn += int(np.any(rows != rows[:, :1], axis=1).sum())
        self.seen.update(rows[:, 0].astype(int).tolist())
        self.num_batches += 1

    def write(self, place: Path) -> None:
        """Say when the last batch came, and what was found."""
        found = {
            "end": time.time(),
            "batches": self.num_batches,
            "torn": self.num_torn,
            "seen": len(self.seen),
            "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        (place / "found.json").write_text(json.dumps(found))


def look_at_all(batches: Iterable[Any], place: Path) -> None:
    """Take all batches of a training."""
    judge = Judge()
    for batch in batches:
        judge.look(batch)
    judge.write(place)


def begin(place: Path, producer: int) -> None:
    """Note when a simulation was ready to send."""
    (place / f"start-{producer}").write_text(repr(time.time()))


def end(place: Path, producer: int) -> None:
    """Note that a simulation has ended."""
    (place / f"end-{producer}").touch()


def ready(place: Path) -> None:
    """Tell the simulations that the training is there."""
    (place / READY).touch()


def meet(place: Path, producer: int, work: Work) -> None:
    """Wait until the training and all simulations have imported their packages."""
    (place / f"here-{producer}").touch()
    while not ((place / READY).exists() and len(list(place.glob("here-*"))) == work.num_producers):
        time.sleep(LOOK_S)


def wait_for_producers(place: Path, work: Work) -> None:
    """Wait until all simulations have ended, as training from files must."""
    while len(list(place.glob("end-*"))) < work.num_producers:
        time.sleep(LOOK_S)
