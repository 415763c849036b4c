"""A recording that does not fit ends with whole samples; a later start of the study records again."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stream_server.buffers import Slots
from stream_server.config import load
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RankRecord
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder
from tests.support.runs import NUMPY_STUDY
from tests.support.small_disk import PAGE, SmallDisk

NUM_SAMPLES = 60
FIELDS = (FieldSpec(name="signal", shape=(400,)), FieldSpec(name="energy", shape=(1,)))
SHAPES = {field.name: field.shape for field in FIELDS}
FACTS = replace(RecordedStudy.of(load(NUMPY_STUDY), ("offset", "slope"), 1), fields=FIELDS)


def case(disk: SmallDisk, folder: Path, num_pages: int, draw: random.Random) -> Iterator[str]:
    """All samples one by one with `num_pages` left, and those that were not recorded once the disk is clear."""
    slots, path = _slots(draw), folder / "record"
    disk.leave(num_pages * PAGE)
    position, num = 0, 0
    with _recorder(path, slots, incarnation=1, position=0) as recorder:
        for slot in range(NUM_SAMPLES):
            recorder.append([slot])
            now = recorder.sync(recorder.position())
            if now is not None:
                position, num = now, slot + 1
    if recorder.error is None and num != NUM_SAMPLES:
        yield f"only {num} of {NUM_SAMPLES} samples were recorded, and there is no error"
    if num:
        found = _samples(path)
        if found[:num] != _keys(slots)[:num]:
            yield f"{num} samples were recorded, but {found} are read"
    disk.clear()
    with _recorder(path, slots, incarnation=2, position=position) as again:
        again.append(list(range(num, NUM_SAMPLES)))
    if again.error is not None or again.marker.exists():
        yield f"the next start does not record: {again.error}"
    elif _samples(path) != _keys(slots):
        yield f"after a restart {_samples(path)} are read"


def _recorder(folder: Path, slots: Slots, *, incarnation: int, position: int) -> Recorder:
    return Recorder(
        folder,
        FACTS,
        rank=0,
        incarnation=incarnation,
        position=position,
        rows=slots,
        parameters_of=lambda it: np.full(2, it),
    )


def _slots(draw: random.Random) -> Slots:
    slots = Slots(SHAPES, NUM_SAMPLES)
    slots.allocate(dict.fromkeys(SHAPES, np.float64))
    slots.simulation_ids[:] = [draw.randrange(4) for _ in range(NUM_SAMPLES)]
    slots.time_steps[:] = np.arange(NUM_SAMPLES)
    for name, array in slots.arrays.items():
        array[:] = slots.time_steps.reshape(-1, *(1 for _ in SHAPES[name]))
    return slots


def _keys(slots: Slots) -> list[tuple[int, int, float]]:
    steps = slots.time_steps.tolist()
    return list(zip(slots.simulation_ids.tolist(), steps, map(float, steps), strict=True))


def _samples(folder: Path) -> list[tuple[int, int, float]]:
    record = RankRecord(folder, 0)
    try:
        entries = [record.read(number) for number in range(len(record))]
    finally:
        record.close()
    return [
        (it.simulation, it.time_step, float(it.fields["signal"][0])) for it in entries if it.kind is EntryKind.SAMPLE
    ]
