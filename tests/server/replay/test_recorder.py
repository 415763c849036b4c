"""The record of a rank, as written and as read back."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.buffers import Slots
from stream_server.server.replay import recorder as recorder_module
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RankRecord, RecordEntry, parts_of_rank
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder, begins_and_ends
from tests.support.recorded import (
    Key,
    has_v,
    parameters_of,
    recorder,
    samples_file,
    slots_with,
    small_study,
    u_of,
    v_of,
)
from tests.support.studies import StudyFolder

KEYS: list[Key] = [(2, 0), (3, 0), (2, 1), (3, 1), (2, 2)]


def entries(folder: Path, rank: int = 0) -> list[RecordEntry]:
    record = RankRecord(folder, rank)
    try:
        return [record.read(number) for number in range(len(record))]
    finally:
        record.close()


def warnings_of(folder: Path) -> list[str]:
    record = RankRecord(folder, 0)
    record.close()
    return record.warnings


def samples(folder: Path, rank: int = 0) -> list[Key]:
    return [(entry.simulation, entry.time_step) for entry in entries(folder, rank) if entry.kind is EntryKind.SAMPLE]


@pytest.fixture
def slots() -> Slots:
    return slots_with(KEYS)


def test_samples_are_read_as_they_were_recorded(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        it.append([1, 0])
        it.append([])
        it.append([4, 3, 2])
    read = [entry for entry in entries(it.folder) if entry.kind is EntryKind.SAMPLE]
    assert [(entry.simulation, entry.time_step) for entry in read] == [KEYS[slot] for slot in (1, 0, 4, 3, 2)]
    for entry in read:
        key = (entry.simulation, entry.time_step)
        assert entry.fields["u"].dtype == np.float32
        assert entry.fields["u"].tolist() == u_of(key).tolist()
        assert entry.fields.get("v") == (v_of(key) if has_v(key) else None)


def test_the_parameters_come_before_the_first_sample_of_a_simulation(folder: StudyFolder, slots: Slots) -> None:
    with recorder(small_study(folder), slots) as it:
        it.append([0, 2])
        it.append([1, 3])
    read = entries(it.folder)
    assert [entry.kind for entry in read] == [EntryKind.PARAMETERS, EntryKind.SAMPLE, EntryKind.SAMPLE] * 2
    assert [entry.parameters.tolist() for entry in read if entry.kind is EntryKind.PARAMETERS] == [
        parameters_of(2).tolist(),
        parameters_of(3).tolist(),
    ]


def test_held_out_samples_and_the_ends_of_simulations_are_recorded(folder: StudyFolder, slots: Slots) -> None:
    with recorder(small_study(folder), slots) as it:
        it.append_held_out([0])
        it.finish(2)
        it.withdraw(3)
    told = [(entry.kind, entry.simulation) for entry in entries(it.folder)]
    assert told == [
        (EntryKind.PARAMETERS, 2),
        (EntryKind.HELD_OUT, 2),
        (EntryKind.FINISHED, 2),
        (EntryKind.WITHDRAWN, 3),
    ]


def test_what_is_told_before_the_first_sample_waits_for_it(folder: StudyFolder) -> None:
    slots = Slots({"u": (2, 3), "v": ()}, 1)
    with recorder(small_study(folder), slots) as it:
        it.withdraw(3)
        slots.allocate({"u": np.float32, "v": np.float64})
        slots.simulation_ids[0] = 4
        it.append([0])
    assert [entry.kind for entry in entries(it.folder)] == [EntryKind.WITHDRAWN, EntryKind.PARAMETERS, EntryKind.SAMPLE]


def test_a_checkpoint_counts_on_what_was_told_since_the_last_sample(folder: StudyFolder, slots: Slots) -> None:
    with recorder(small_study(folder), slots) as it:
        it.append([0])
        assert it.position() == 2
        it.finish(2)
        assert it.position() == 3


def test_a_rank_without_samples_has_a_record_all_the_same(folder: StudyFolder) -> None:
    with recorder(small_study(folder), Slots({"u": (2, 3), "v": ()}, 1)) as it:
        it.finish(3)
    assert [entry.kind for entry in entries(it.folder)] == [EntryKind.FINISHED]


DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("order", ["little", "big"])
def test_every_type_keeps_its_bits(folder: StudyFolder, order: str) -> None:
    fields = {f"f{i}": {"shape": [2] * (i % 3)} for i in range(len(DTYPES))}
    slots = Slots({name: tuple(spec["shape"]) for name, spec in fields.items()}, 2)
    slots.allocate(
        {f"f{i}": np.dtype(dtype).newbyteorder("<" if order == "little" else ">") for i, dtype in enumerate(DTYPES)}
    )
    random = np.random.default_rng(5)
    for array in slots.arrays.values():
        bits = random.integers(0, 2 if array.dtype == bool else 256, array.nbytes, np.uint8)
        array.view(np.uint8).reshape(-1)[:] = bits
    slots.simulation_ids[:] = [2, 3]
    with recorder(small_study(folder, {"study.fields": fields}), slots) as it:
        it.append([0, 1])
    read = [entry for entry in entries(it.folder) if entry.kind is EntryKind.SAMPLE]
    for slot, entry in enumerate(read):
        for name, array in slots.arrays.items():
            little = array[slot : slot + 1].astype(array.dtype.newbyteorder("<"))
            assert np.asarray(entry.fields[name]).tobytes() == little.tobytes()


def test_many_more_samples_than_a_block_holds_keep_their_order(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "BLOCK_BYTES", 400)
    keys = [(2, step) for step in range(50)]
    with recorder(small_study(folder), slots_with(keys)) as it:
        it.append(list(range(40)))
        it.append(list(range(40, 50)))
        assert it.position() == 51
    assert samples(it.folder) == keys


def test_one_sample_larger_than_a_block_is_recorded(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "BLOCK_BYTES", 1)
    with recorder(small_study(folder), slots_with(KEYS)) as it:
        it.append([0, 1, 2])
    assert samples(it.folder) == KEYS[:3]


def test_blocks_are_no_larger_after_a_large_entry(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "BLOCK_BYTES", 100)
    config = small_study(folder, {"study.fields": {"u": {"shape": [{"max": 100}]}}})
    slots = Slots({"u": (100,)}, 9, ragged=["u"])
    slots.allocate({"u": np.float64})
    slots.simulation_ids[:] = 2
    for slot in range(9):
        slots.time_steps[slot] = slot
        slots.set_value("u", slot, np.zeros(100 if slot == 3 else 5))
    with recorder(config, slots) as it:
        it.append(list(range(9)))
    [part] = parts_of_rank(it.folder, 0)
    assert list(np.diff(part.begins)) == [2, 2, 1, 2, 2, 2]
    assert samples(it.folder) == [(2, step) for step in range(9)]


def test_a_field_may_have_two_gibibytes_and_more(folder: StudyFolder) -> None:
    shape = (2**29, 2)
    config = small_study(folder, {"study.fields": {"u": {"shape": [{"max": shape[0]}, 2], "dtype": "int16"}}})
    slots = Slots({"u": shape}, 1, ragged=["u"])
    slots.allocate({"u": np.int16})
    slots.simulation_ids[0] = 2
    value = np.arange(6, dtype=np.int16).reshape(3, 2)
    slots.set_value("u", 0, value)
    with recorder(config, slots) as it:
        it.append([0])
    assert it.error is None
    [_, entry] = entries(it.folder)
    assert entry.fields["u"].tolist() == value.tolist()


def test_a_sample_takes_48_bytes_more_than_the_fields_that_it_has(folder: StudyFolder) -> None:
    config, keys = small_study(folder), [(2, step) for step in range(99)]
    with recorder(config, slots_with(keys)) as it:
        it.append(list(range(99)))
    with samples_file(it.folder).open("rb") as file:
        described = len(file.readline())
    samples_bytes = 99 * (48 + 24) + 66 * 8
    assert samples_file(it.folder).stat().st_size == described + 40 + (48 + 2 * 8) + samples_bytes + 48


def test_the_record_goes_on_at_the_position_of_the_checkpoint(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    with recorder(config, slots) as first:
        first.append([0, 1])
        position = first.sync(first.position())
        first.append([2, 3])
    assert position == 4
    with recorder(config, slots, incarnation=2, position=position) as second:
        second.append([3, 2, 4])
    assert samples(first.folder) == [KEYS[slot] for slot in (0, 1, 3, 2, 4)]
    sizes = [path.stat().st_size for path in sorted(first.folder.glob("*.samples"))]
    assert sizes[0] < sizes[1]


def test_a_checkpoint_older_than_the_last_one_cuts_several_files(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    for incarnation, (position, slot) in enumerate([(0, 0), (2, 2), (4, 4), (2, 3)], start=1):
        with recorder(config, slots, incarnation=incarnation, position=position) as it:
            it.append([slot])
            assert it.position() == position + 2
    assert samples(it.folder) == [KEYS[0], KEYS[3]]


def test_a_server_that_was_left_behind_changes_nothing(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    with recorder(config, slots) as old:
        old.append([0])
        position = old.position()
        old.append([1])
        with recorder(config, slots, incarnation=2, position=position) as new:
            new.append([2])
            old.append([3, 4])
            old.position()
            new.append([4])
    assert samples(old.folder) == [KEYS[0], KEYS[2], KEYS[4]]


def test_a_start_that_records_nothing_still_cuts_what_the_last_one_wrote_too_much(
    folder: StudyFolder, slots: Slots
) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        it.append([0, 1])
        position = it.position()
        it.append([2])
    with recorder(config, Slots({"u": (2, 3), "v": ()}, 1), incarnation=2, position=position):
        pass
    assert samples(it.folder) == KEYS[:2]


def test_ranks_that_are_gone_keep_what_was_in_the_checkpoint(folder: StudyFolder) -> None:
    config, positions = small_study(folder), {}
    for rank in range(3):
        with recorder(config, slots_with([(2, rank), (2, 3 + rank)]), rank=rank, num_ranks=3) as it:
            it.append([0])
            positions[rank] = it.position()
            it.append([1])
    gone = {rank: position for rank, position in positions.items() if rank and position is not None}
    with recorder(config, slots_with([(2, 9)]), incarnation=2, position=positions[0], gone=gone) as it:
        it.append([0])
    assert RecordedStudy.read(it.folder).ranks == 3
    assert [samples(it.folder, rank) for rank in range(3)] == [[(2, 0), (2, 9)], [(2, 1)], [(2, 2)]]


def test_a_rank_that_is_gone_for_a_while_goes_on_where_it_was(folder: StudyFolder) -> None:
    """On two ranks, then on one, then on two; what a third one recorded before it was killed is sent again."""
    config = small_study(folder)
    record = config.output_dir / "record"
    saved: dict[int, int | None] = {}
    for incarnation, num_ranks in enumerate((2, 1, 2), start=1):
        for rank in range(num_ranks):
            keys = [(2, 10 * incarnation + rank), (3, 10 * incarnation + rank)]
            position, gone = begins_and_ends(record, saved, incarnation=incarnation - 1, rank=rank, num_ranks=num_ranks)
            place = {"rank": rank, "num_ranks": num_ranks, "incarnation": incarnation, "position": position}
            with recorder(config, slots_with(keys), **place, gone=gone) as it:
                it.append([0])
                saved[rank] = it.position()
                it.append([1])
        saved = {rank: saved[rank] for rank in range(num_ranks)}
    with recorder(config, slots_with([(4, 0)]), rank=2, num_ranks=3, incarnation=4) as it:
        it.append([0])
    position, gone = begins_and_ends(record, saved, incarnation=3, rank=0, num_ranks=2)
    with recorder(config, slots_with([(5, 0)]), num_ranks=2, incarnation=5, position=position, gone=gone) as it:
        it.append([0])
    assert samples(record, 0) == [(2, 10), (2, 20), (2, 30), (5, 0)]
    assert samples(record, 1) == [(2, 11), (2, 31), (3, 31)]
    assert samples(record, 2) == []


def fail_to_write(monkeypatch: pytest.MonkeyPatch, after_bytes: int) -> None:
    """Let the disk be full after some more bytes."""
    left, write = after_bytes, os.write

    def limited(file: int, data: Any) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num = write(file, memoryview(data)[:left])
        left -= num
        return num

    monkeypatch.setattr(os, "write", limited)


BLOCK_BYTES = 40 + 2 * (48 + 24 + 8) - 8
"""Those of a block with the second and the third sample of a simulation, of which one lacks a field."""


@pytest.mark.parametrize("more_bytes", [0, 1, 39, 41, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_a_full_disk_ends_the_recording_and_leaves_whole_blocks(
    folder: StudyFolder,
    slots: Slots,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    more_bytes: int,
) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        it.append([0])
        assert it.position() == 2
        assert not it.is_over
        with monkeypatch.context() as patch:
            fail_to_write(patch, more_bytes)
            it.append([2, 4])
            it.position()
            it.append([2])
            assert it.position() is None
        it.append([1])
        it.finish(2)
        assert it.sync(it.position()) is None
    assert isinstance(it.error, OSError)
    assert it.is_over
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "No space left" in it.marker.read_text()
    whole = [KEYS[0], KEYS[2], KEYS[4]]
    assert samples(it.folder) == (whole if more_bytes >= BLOCK_BYTES else whole[:1])
    [warning] = warnings_of(it.folder)
    assert "No space left" in warning


def test_a_disk_that_is_full_before_the_first_sample_is_no_harm(
    folder: StudyFolder, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder(small_study(folder), slots) as it, monkeypatch.context() as patch:
        fail_to_write(patch, 20)
        it.append([0])
        assert it.position() is None
    assert it.error is not None
    assert samples(it.folder) == []


def test_a_folder_that_cannot_be_made_is_no_harm(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    config.output_dir.parent.mkdir(parents=True, exist_ok=True)
    config.output_dir.write_text("a file")
    with recorder(config, slots) as it:
        it.append([0])
    assert isinstance(it.error, OSError)


def test_facts_of_another_release_are_left_alone(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    path = config.output_dir / "record" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 99}')
    with recorder(config, slots) as it:
        it.append([0])
    assert "expected format 2, found 99" in str(it.error)
    assert path.read_text() == '{"format": 99}'


def test_a_recording_that_is_over_stays_over(folder: StudyFolder, slots: Slots) -> None:
    with recorder(small_study(folder), slots) as it:
        it.append([0])
    with recorder(small_study(folder), slots, incarnation=2, position=None) as again:
        again.append([1])
        again.finish(2)
        assert again.position() is None
        assert again.is_over
    assert samples(it.folder) == KEYS[:1]


def test_a_restart_from_before_the_disk_was_full_records_again(
    folder: StudyFolder, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        it.append([0])
        position = it.position()
        with monkeypatch.context() as patch:
            fail_to_write(patch, 0)
            it.append([1])
            it.position()
    with recorder(config, slots, incarnation=2, position=position) as again:
        again.append([1, 2])
    assert again.error is None
    assert not again.marker.exists()
    assert samples(it.folder) == KEYS[:3]


def test_a_failing_sync_ends_the_recording(folder: StudyFolder, slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with recorder(small_study(folder), slots) as it:
        it.append([0])
        position = it.position()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            assert it.sync(position) is None
        assert it.sync(position) is None
        it.append([1])
        assert it.position() is None
    assert isinstance(it.error, OSError)


def test_a_record_that_lost_what_a_checkpoint_counts_on_is_not_gone_on_with(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        it.append([0, 1, 2])
        position = it.position()
    os.truncate(samples_file(it.folder), samples_file(it.folder).stat().st_size - 200)
    with recorder(config, slots, incarnation=2, position=position) as again:
        again.append([3])
    assert "the end of the file is lost" in str(again.error)


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from stream_server.buffers import Slots
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder

resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
slots = Slots({"u": (1000,)}, 100)
slots.allocate({"u": np.float64})
slots.simulation_ids[:], slots.arrays["u"][:] = 2, 0.5
facts = RecordedStudy(
    study="s", ranks=1, fields=(FieldSpec(name="u", shape=(1000,)),), parameters=("p",), first=0,
    every=1, nonfinite="keep", seed=0,
)
with Recorder(
    Path(sys.argv[1]), facts, rank=0, incarnation=1, position=0, rows=slots, parameters_of=lambda _: np.zeros(1)
) as recorder:
    for _ in range(10):
        recorder.append(list(range(100)))
        print(recorder.position())
"""


def test_a_file_that_may_not_grow_any_more_ends_the_recording(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["101", "201", "301", *["None"] * 7]
    assert 2_400_000 < samples_file(tmp_path).stat().st_size < 2_500_000
    assert (tmp_path / "rank-0.incomplete").read_text().strip()
    assert len(samples(tmp_path)) == 300
    assert run.stderr.count("not recorded any more") == 1


def test_a_recorder_needs_no_end_to_be_read(folder: StudyFolder, slots: Slots) -> None:
    with recorder(small_study(folder), slots) as it:
        it.append([0, 1])
        it.position()
        record = RankRecord(it.folder, 0)
        assert len(record) == 4
        assert not record.is_closed
        record.close()


def test_facts_are_kept_in_a_file_of_their_own(folder: StudyFolder, slots: Slots) -> None:
    config = small_study(folder)
    with recorder(config, slots) as it:
        pass
    facts = RecordedStudy.read(it.folder)
    assert facts == RecordedStudy.of(config, ("initial", "left"), 1)
    assert isinstance(it, Recorder)
