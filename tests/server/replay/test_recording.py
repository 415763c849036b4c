"""Opening a record: what is refused, what is noticed, what is only told."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ConfigError, DamagedRecord
from stream_server.server.progress import changes as of_restarts
from stream_server.server.replay import recorder as recorder_module
from stream_server.server.replay.record_reader import RankRecord, Recording
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from tests.support.recorded import (
    PARAMETERS,
    interleave,
    record,
    recorder,
    samples_file,
    slots_with,
    small_study,
)
from tests.support.studies import Changes, StudyFolder

# The heads of a block and of its only entry, an event.
BLOCK_BYTES = 40 + 48
KEYS = interleave(range(2, 6))


@pytest.fixture
def recorded(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of which each block has one entry."""
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "MOST_ENTRIES", 1)
        return record(small_study(folder), KEYS)


def read_everything(folder: Path) -> int:
    """Go through a record as a replay does; gives the number of its entries."""
    with closing(Recording(folder)) as recording:
        return sum(sum(len(heads) + 0 * read_all(file) for _, heads in file.heads()) for file in recording.ranks)


def warnings_of(folder: Path) -> list[str]:
    with closing(Recording(folder)) as recording:
        return recording.warnings


def read_all(file: RankRecord) -> int:
    return len([file.read(number) for number in range(len(file))])


def test_a_record_is_found_in_its_folder_and_in_that_of_its_study(folder: StudyFolder, recorded: Path) -> None:
    for path in (recorded, recorded.parent):
        with closing(Recording(path)) as recording:
            assert recording.folder == recorded
            recording.check(small_study(folder), PARAMETERS)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no record: record\.json was expected .* checkpoint\.record = true"):
        Recording(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 7}, "expected format 2, found 7"),
        ({"ranks": ...}, "is damaged"),
        ({"fields": 3}, "is damaged"),
        ({"more": 3}, "is damaged"),
    ],
)
def test_facts_that_cannot_be_read_are_refused(recorded: Path, change: dict[str, Any], told: str) -> None:
    path = recorded / "record.json"
    facts = {**parse_checksummed_json(path.read_bytes()), **change}
    path.write_bytes(checksummed_json({key: value for key, value in facts.items() if value is not ...}))
    with pytest.raises(ConfigError, match=told):
        Recording(recorded)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"study.fields": {"u": [2, 3]}}, "study.fields: expected the fields u, v, as recorded, but found u."),
        ({"study.fields.u.shape": [3, 2]}, r"study.fields.u.shape: expected \[2, 3\], .* found \[3, 2\]"),
        ({"study.fields.u.dtype": "float64"}, "study.fields.u.dtype: expected <f4, as recorded, but found <f8"),
        ({"study.fields.v.optional": False}, "study.fields.v.optional: expected true"),
        ({"study.time_steps": {"last": 22, "every": 2}}, "study.time_steps: expected {'first': 0, 'every': 1}"),
    ],
)
def test_a_study_with_other_samples_is_refused(
    folder: StudyFolder, recorded: Path, changes: Changes, told: str
) -> None:
    with closing(Recording(recorded)) as recording, pytest.raises(ConfigError, match=told):
        recording.check(small_study(folder, changes), PARAMETERS)


def test_all_that_does_not_fit_is_told_at_once(folder: StudyFolder, recorded: Path) -> None:
    config = small_study(folder, {"study.fields.u.shape": [3, 2], "study.fields.v.optional": False})
    with closing(Recording(recorded)) as recording, pytest.raises(ConfigError) as caught:
        recording.check(config, ("initial", "right"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "Write what was recorded" in lines[1]


def test_samples_that_may_not_be_finite_fit_only_a_study_that_keeps_such(folder: StudyFolder) -> None:
    path = record(small_study(folder, {"training.nonfinite": "keep"}), KEYS)
    with closing(Recording(path)) as recording:
        recording.check(small_study(folder, {"training.nonfinite": "keep"}), PARAMETERS)
        with pytest.raises(ConfigError, match=r'training.nonfinite: expected "keep"'):
            recording.check(small_study(folder), PARAMETERS)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


@pytest.mark.slow
def test_every_flipped_byte_is_noticed(recorded: Path) -> None:
    path = samples_file(recorded)
    size = path.stat().st_size
    for place in [*range(0, size, 7), *range(size - 2 * BLOCK_BYTES, size)]:
        flip(path, place)
        with pytest.raises(DamagedRecord):
            read_everything(recorded)
        flip(path, place)
    assert read_everything(recorded) == len(KEYS) + 8


def test_entries_that_changed_places_are_noticed(recorded: Path) -> None:
    path = samples_file(recorded)
    data = path.read_bytes()
    first, second = data[-3 * BLOCK_BYTES : -2 * BLOCK_BYTES], data[-2 * BLOCK_BYTES : -BLOCK_BYTES]
    path.write_bytes(data[: -3 * BLOCK_BYTES] + second + first + data[-BLOCK_BYTES:])
    with pytest.raises(DamagedRecord, match="is not as it was written, or not there"):
        read_everything(recorded)


@pytest.mark.parametrize("lost_bytes", [1, BLOCK_BYTES - 1, BLOCK_BYTES + 1])
def test_half_a_block_at_the_end_is_left_out_and_told(recorded: Path, lost_bytes: int) -> None:
    path = samples_file(recorded)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - lost_bytes)
    lost = -(-lost_bytes // BLOCK_BYTES)
    assert read_everything(recorded) == len(KEYS) + 8 - (lost - 1)
    no_end, torn = warnings_of(recorded)
    assert "has no end" in no_end
    assert "is not all there" in torn


def test_a_record_without_its_end_is_told(recorded: Path) -> None:
    path = samples_file(recorded)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3 * BLOCK_BYTES)
    assert read_everything(recorded) == len(KEYS) + 8 - 2
    [warning] = warnings_of(recorded)
    assert "the record of rank 0 has no end" in warning


def test_a_recording_that_ended_with_an_error_is_told(recorded: Path) -> None:
    (recorded / "rank-0.incomplete").write_text("No space left on device\n")
    assert warnings_of(recorded) == ["rank 0 recorded only some of its samples: No space left on device"]


def test_a_file_of_nothing_but_a_torn_description_is_no_harm(recorded: Path) -> None:
    num = read_everything(recorded)
    for size in (0, 5, 20, 40):
        data = samples_file(recorded).read_bytes()[:size]
        later = recorded / f"rank-0.incarnation-2.from-{num}.samples"
        later.write_bytes(data)
        assert read_everything(recorded) == num
        later.unlink()


def test_a_lost_file_is_noticed(folder: StudyFolder) -> None:
    config = small_study(folder)
    path = record(config, KEYS, num_ranks=2)
    samples_file(path, 1).unlink()
    with pytest.raises(DamagedRecord, match=r"of rank 1, .* found none: a file is missing"):
        Recording(path)


def test_a_lost_file_of_an_earlier_start_is_noticed(folder: StudyFolder) -> None:
    config, slots = small_study(folder), slots_with(KEYS)
    for incarnation, position in ((1, 0), (2, 2), (3, 4)):
        with recorder(config, slots, incarnation=incarnation, position=position) as it:
            it.append([incarnation])
            assert it.position() == position + 2
    for incarnation in (1, 2):
        [path] = it.folder.glob(f"rank-0.incarnation-{incarnation}.*")
        path.rename(path.with_suffix(".away"))
        with pytest.raises(DamagedRecord):
            Recording(it.folder)
        path.with_suffix(".away").rename(path)
    assert read_everything(it.folder) == 6


def test_files_that_changed_names_are_noticed(folder: StudyFolder) -> None:
    path = record(small_study(folder), KEYS, num_ranks=2)
    first, second = samples_file(path, 0), samples_file(path, 1)
    first.rename(path / "aside")
    second.rename(first)
    (path / "aside").rename(second)
    with pytest.raises(DamagedRecord, match=r"was written as rank-1\.incarnation-1"):
        Recording(path)


def test_a_file_of_something_else_is_noticed(recorded: Path) -> None:
    samples_file(recorded).write_bytes(b"\x89PNG and so on" * 100)
    with pytest.raises(DamagedRecord, match="is no record of samples"):
        Recording(recorded)


def test_a_record_says_what_restarts_have_changed_in_the_training(folder: StudyFolder) -> None:
    config = small_study(folder)
    path = record(config, KEYS)
    assert "changes" not in (path / "record.json").read_text()
    changes = of_restarts.Changes(batch=300)
    changes.note("study.simulations", before=4, now=6, source="study.json")
    RecordedStudy.of(config, PARAMETERS, 1, changes).write(path)
    assert warnings_of(path) == []
    changes.note("learning rate", before=1e-3, now=3e-4, source="server.py")
    RecordedStudy.of(config, PARAMETERS, 1, changes).write(path)
    [told] = warnings_of(path)
    assert told.endswith("as they are now: from batch 300: learning rate 0.001 → 0.0003, from server.py")
