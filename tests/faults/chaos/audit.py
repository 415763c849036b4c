"""The samples and checkpoints of a study's servers, from the logs that tests/faults/chaos/study/server.py writes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[int, int]
NAME = re.compile(r"incarnation-(?P<incarnation>\d+)-rank-(?P<rank>\d+)-(?P<pid>\d+)\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Incarnation:
    """One start of the server, which goes on after `batches` batches, those of checkpoint `base` (0: none)."""

    number: int
    base: int
    batches: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One rank's part of a batch; `time` is when it was trained."""

    incarnation: int
    rank: int
    batch: int
    keys: tuple[Key, ...]
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A checkpoint that a server of `incarnation` has told its user's class of."""

    incarnation: int
    checkpoint: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """All that was logged, whether it survived or not."""

    trained: tuple[Trained, ...]
    committed: tuple[Committed, ...]


def read_incarnations(output_dir: Path) -> tuple[Incarnation, ...]:
    """All starts of the server that are in the list of them."""
    file = output_dir / "checkpoints" / "incarnations.json"
    starts = json.loads(file.read_text())["starts"] if file.exists() else []
    return tuple(Incarnation(number=it["incarnation"], base=it["base"], batches=it["batches"]) for it in starts)


def read_audit(output_dir: Path) -> Audit:
    """The logs of all ranks of all incarnations."""
    trained, committed = [], []
    for file in sorted((output_dir / "audit").glob("*.jsonl")):
        name = NAME.fullmatch(file.name)
        assert name is not None, file
        incarnation, rank = int(name["incarnation"]), int(name["rank"])
        for line in _lines(file):
            if "batch" in line:
                keys = tuple((simulation, time_step) for simulation, time_step in line["keys"])
                trained.append(
                    Trained(incarnation=incarnation, rank=rank, batch=line["batch"], keys=keys, time=line["time"])
                )
            elif rank == 0:
                committed.append(Committed(incarnation=incarnation, checkpoint=int(line["committed"])))
    return Audit(trained=tuple(trained), committed=tuple(committed))


def committed_checkpoints(folder: Path) -> list[Path]:
    """The committed checkpoints that are there, oldest first."""
    return sorted(it for it in folder.glob("[0-9]*") if it.name.isdecimal())


def has_trained(output_dir: Path, pid: int) -> bool:
    """Whether this process of a server has finished a batch."""
    return any(file.stat().st_size > 0 for file in (output_dir / "audit").glob(f"incarnation-*-{pid}.jsonl"))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines: a killed process may have left the last one half-written."""
    text = file.read_text() if file.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
