"""The record of the samples that two ranks accepted in two incarnations."""

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError
from stream_server.server.replay.record_reader import Recording
from tests.faults.sweep.corruption.stores.store import Store, Verdict
from tests.faults.sweep.records import recorder

NUM_RANKS = 2
POSITION = 1 + 3


def make(folder: Path, study: int) -> None:
    for rank in range(NUM_RANKS):
        for incarnation, position in ((1, 0), (2, POSITION)):
            keys = [(2 + study, 2 * step + rank) for step in range(incarnation, incarnation + 5)]
            with recorder(
                folder, keys, rank=rank, num_ranks=NUM_RANKS, incarnation=incarnation, position=position, study=study
            ) as open_recorder:
                open_recorder.append(range(POSITION - 1))
                assert open_recorder.position() == position + POSITION
                open_recorder.append(range(POSITION - 1, len(keys)))


def read(folder: Path) -> Verdict:
    """Read it as a replay does: every entry of every rank."""
    try:
        found, warnings = _entries(folder)
    except ConfigError:
        return Verdict.REFUSED
    wanted, _ = _original()
    if found == wanted:
        return Verdict.WHOLE
    assert found[0] == wanted[0], f"another study is believed: {found[0]}"
    for ours, theirs in zip(found[1:], wanted[1:], strict=True):
        assert ours == theirs[: len(ours)], "other samples are believed"
    assert warnings, "samples are missing, and nobody is told"
    return Verdict.SHORTER


@cache
def _original() -> tuple[list[Any], list[str]]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        make(Path(folder) / "record", 0)
        return _entries(Path(folder) / "record")


def _entries(folder: Path) -> tuple[list[Any], list[str]]:
    """The facts of the record and the entries of each rank, and what is told of those that are missing."""
    with closing(Recording(folder)) as recording:
        entries = ([_plain(record.read(it)) for it in range(len(record))] for record in recording.ranks)
        return [recording.study, *entries], recording.warnings


def _plain(entry: Any) -> tuple[Any, ...]:
    fields = {name: value.tobytes() for name, value in entry.fields.items()}
    return entry.kind, entry.simulation, entry.time_step, fields, entry.parameters.tobytes()


STORE = Store(name="record", make=make, read=read, targets=("record.json", "*.samples"), ends_anywhere=("*.samples",))
