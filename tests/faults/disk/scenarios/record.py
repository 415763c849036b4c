"""The record of samples: as far as a checkpoint counts on it, it is there, and goes on from there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.buffers import Slots
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RankRecord, RecordEntry
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder
from tests.faults.disk.scenarios.scenario import Tell
from tests.support.recorded import Key, parameters_of, slots_with, u_of

FOLDER = "run/record"
Statics = Mapping[int, Mapping[str, np.ndarray]]
"""What simulations sent once."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Content:
    """A recording: the sample of each key, in the slot of its number. `check` is given what was read again."""

    study: RecordedStudy
    keys: Sequence[Key]
    slots: Slots
    check: Callable[[Sequence[RecordEntry], Statics], None]


def check_values(samples: Sequence[RecordEntry], statics: Statics) -> None:
    """Check that each sample has the field of its key."""
    for entry in samples:
        assert (entry.fields["u"] == u_of((entry.simulation, entry.time_step))).all()


KEYS: list[Key] = [(2 + step % 3, step) for step in range(60)]
SAMPLES = Content(
    study=RecordedStudy(
        study="s",
        ranks=2,
        fields=(FieldSpec(name="u", shape=(2, 3)), FieldSpec(name="v", shape=(), optional=True)),
        parameters=("initial", "left"),
        first=0,
        every=1,
        nonfinite="keep",
        seed=0,
    ),
    keys=KEYS,
    slots=slots_with(KEYS),
    check=check_values,
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """A recorder of this incarnation is about to begin."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Recording:
    """It has begun: what was wrong with the record before is over."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A checkpoint counts on so many entries, with so many of `KEYS`."""

    position: int
    num_keys: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The record has its end, after so many of `KEYS`."""

    num_keys: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recordings:
    """Rank 0 of two records; rank 1 may be `gone` since the start, and had recorded more than the checkpoint has."""

    name: str
    gone: bool = False
    content: Content = SAMPLES

    @classmethod
    def all(cls) -> "tuple[Recordings, ...]":
        return (cls(name="a record"), cls(name="the record of fewer ranks", gone=True))

    def prepare(self, folder: Path) -> Sequence[object]:
        (folder / "run").mkdir(parents=True)
        if not self.gone:
            return []
        positions = []
        for rank in range(2):
            with recorder(folder, 1, 0, rank=rank) as it:
                it.append(range(5))
                positions.append(it.position())
                it.append(range(5, 9))
        (folder / FOLDER / "rank-0.incomplete").write_text("the disk was full\n")
        assert positions == [8, 8]
        return [Beginning(1), Counted(8, 5)]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        self._record(folder, told, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        if told and isinstance(told[-1], Closed):
            self._check(folder, told)
        facts = self._record(folder, told, tell)
        self._check(folder, [*told, *facts])

    def _record(self, folder: Path, told: Sequence[object], tell: Tell) -> list[object]:
        """Go on from the last checkpoint: two more, and what comes after them; gives what was told."""
        facts: list[object] = []

        def say(fact: object) -> None:
            facts.append(fact)
            tell(fact)

        incarnation = 1 + max((fact.incarnation for fact in told if isinstance(fact, Beginning)), default=0)
        counted = _counted(told)
        num = counted.num_keys
        say(Beginning(incarnation))
        gone = {1: 8} if self.gone else {}
        with recorder(folder, incarnation, counted.position, gone=gone, content=self.content) as it:
            assert it.error is None, it.error
            say(Recording())
            for more in (4, 7):
                it.append(range(num, num + more))
                position, num = it.position(), num + more
                it.append(range(num, num + 3))
                assert it.position() is not None, it.error
                assert it.sync(position) == position is not None
                say(Counted(position, num))
                num += 3
        assert it.error is None, it.error
        say(Closed(num))
        return facts

    def _check(self, folder: Path, told: Sequence[object]) -> None:
        """Check what a replay finds, once the study goes on or has ended."""
        if _has_begun(told):
            assert not (folder / FOLDER / "rank-0.incomplete").exists(), "a record that goes on is called incomplete"
        counted = _counted(told)
        if counted.num_keys:
            expected = self.content.keys
            keys, is_closed = read(folder, 0, counted.position, self.content)
            assert keys[: counted.num_keys] == expected[: counted.num_keys]
            if isinstance(told[-1], Closed):
                assert is_closed
                assert read(folder, 0, content=self.content)[0] == expected[: told[-1].num_keys]
        if self.gone:
            assert read(folder, 1, 8)[0][:5] == KEYS[:5]


def recorder(
    folder: Path,
    incarnation: int,
    position: int,
    *,
    rank: int = 0,
    gone: dict[int, int] | None = None,
    content: Content = SAMPLES,
) -> Recorder:
    """One that goes on at a position."""
    settings: dict[str, Any] = {"rank": rank, "incarnation": incarnation, "position": position, "gone": gone}
    return Recorder(folder / FOLDER, content.study, rows=content.slots, parameters_of=parameters_of, **settings)


def read(folder: Path, rank: int, num_entries: int | None = None, content: Content = SAMPLES) -> tuple[list[Key], bool]:
    """The samples among the first entries of a rank, which are checked, and whether the record has its end."""
    record = RankRecord(folder / FOLDER, rank)
    samples: list[RecordEntry] = []
    statics: dict[int, Mapping[str, np.ndarray]] = {}
    try:
        num = len(record) if num_entries is None else num_entries
        assert num <= len(record), f"{len(record)} entries are there, and a checkpoint counts on {num}"
        for number in range(num):
            entry = record.read(number)
            if entry.kind is EntryKind.SAMPLE:
                samples.append(entry)
            elif entry.kind is EntryKind.STATICS:
                statics[entry.simulation] = entry.fields
        content.check(samples, statics)
        return [(it.simulation, it.time_step) for it in samples], record.is_closed
    finally:
        record.close()


def _counted(told: Sequence[object]) -> Counted:
    return next((fact for fact in reversed(told) if isinstance(fact, Counted)), Counted(0, 0))


def _has_begun(told: Sequence[object]) -> bool:
    return any(isinstance(fact, Recording) for fact in told)
