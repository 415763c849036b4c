"""What the servers of a study have trained and saved, from the logs that tests/chaos/study/server.py writes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[int, int]
NAME = re.compile(r"epoch-(?P<epoch>\d+)-rank-(?P<rank>\d+)-(?P<pid>\d+)\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One start of the server, which goes on after `batches` batches, those of generation `base` (0: none)."""

    number: int
    base: int
    batches: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One rank's part of a batch; `time` is when it was trained."""

    epoch: int
    rank: int
    batch: int
    keys: tuple[Key, ...]
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A generation that a server of `epoch` has told its user's class of."""

    epoch: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """All that was logged, whether it survived or not."""

    trained: tuple[Trained, ...]
    committed: tuple[Committed, ...]


def read_epochs(output_dir: Path) -> tuple[Epoch, ...]:
    """All starts of the server that wrote their line."""
    lines = _lines(output_dir / "checkpoints" / "epochs.jsonl")
    return tuple(Epoch(number=line["epoch"], base=line["base"], batches=line["batches"]) for line in lines)


def read_audit(output_dir: Path) -> Audit:
    """The logs of all ranks of all epochs."""
    trained, committed = [], []
    for file in sorted((output_dir / "audit").glob("*.jsonl")):
        name = NAME.fullmatch(file.name)
        assert name is not None, file
        epoch, rank = int(name["epoch"]), int(name["rank"])
        for line in _lines(file):
            if "batch" in line:
                keys = tuple((simulation, time_step) for simulation, time_step in line["keys"])
                trained.append(Trained(epoch=epoch, rank=rank, batch=line["batch"], keys=keys, time=line["time"]))
            elif rank == 0:
                committed.append(Committed(epoch=epoch, generation=int(line["committed"])))
    return Audit(trained=tuple(trained), committed=tuple(committed))


def generations(checkpoints: Path) -> list[Path]:
    """The committed generations that are there, oldest first."""
    return sorted(folder for folder in checkpoints.glob("[0-9]*") if folder.name.isdecimal())


def has_trained(output_dir: Path, pid: int) -> bool:
    """Whether this process of a server has finished a batch."""
    return any(file.stat().st_size > 0 for file in (output_dir / "audit").glob(f"epoch-*-{pid}.jsonl"))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines: a killed process may have left the last one half-written."""
    text = file.read_text() if file.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
