"""The record of the samples that two ranks accepted in two epochs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from stream_server.client_api.messages import FieldSpec
from stream_server.errors import ConfigError
from stream_server.server.record.facts import RecordFacts
from stream_server.server.record.recorder import Recorder
from stream_server.server.record.recording import Recording
from tests.server.record.recorded import FIELDS, PARAMETERS, Key, parameters_of, slots_with
from tests.sweep.corruption.stores.store import Store, Verdict

NUM_RANKS = 2
POSITION = 1 + 3


def make(folder: Path, study: int) -> None:
    for rank in range(NUM_RANKS):
        for epoch, position in ((1, 0), (2, POSITION)):
            keys = [(2 + study, 2 * step + rank) for step in range(epoch, epoch + 5)]
            with recorder(folder, keys, rank=rank, epoch=epoch, position=position, study=study) as open_recorder:
                open_recorder.append(range(len(keys)))


def read(folder: Path) -> Verdict:
    """Read it as a replay does: every entry of every rank."""
    with _warnings() as warnings:
        try:
            found = _entries(folder)
        except ConfigError:
            return Verdict.REFUSED
    wanted = _original()
    if found == wanted:
        return Verdict.WHOLE
    assert found[0] == wanted[0], f"another study is believed: {found[0]}"
    for ours, theirs in zip(found[1:], wanted[1:], strict=True):
        assert ours == theirs[: len(ours)], "other samples are believed"
    assert warnings, "samples are missing, and nobody is told"
    return Verdict.SHORTER


@cache
def _original() -> list[Any]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        make(Path(folder) / "record", 0)
        return _entries(Path(folder) / "record")


def _entries(folder: Path) -> list[Any]:
    """What the record says of itself, and the entries of each rank."""
    with Recording(folder) as recording:
        return [
            recording.facts,
            *([_plain(record.read(it)) for it in range(len(record))] for record in recording.files),
        ]


def _plain(entry: Any) -> tuple[Any, ...]:
    fields = {name: value.tobytes() for name, value in entry.fields.items()}
    return entry.kind, entry.simulation, entry.time_step, fields, entry.parameters.tobytes()


def recorder(folder: Path, keys: list[Key], *, rank: int, epoch: int, position: int, study: int) -> Recorder:
    facts = RecordFacts(
        study="waves",
        ranks=NUM_RANKS,
        fields=tuple(FieldSpec(name=name, **{**it, "shape": tuple(it["shape"])}) for name, it in FIELDS.items()),
        parameters=PARAMETERS,
        routing="steps",
        first=0,
        every=1,
        num_held_out=0,
        nonfinite="reject",
        seed=7 + study,
    )
    rows = slots_with(keys)
    return Recorder(folder, facts, rank=rank, epoch=epoch, position=position, rows=rows, parameters_of=parameters_of)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    heard: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stream_server")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


STORE = Store(name="record", make=make, read=read, targets=("record.json", "*.samples"), ends_anywhere=("*.samples",))
