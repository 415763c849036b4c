"""The record of samples after a power failure, at the moments at which it once was wrong."""

from pathlib import Path

import pytest

from stream_server.errors import DamagedRecord
from tests.faults.disk.recording import recorded
from tests.faults.disk.scenarios.record import FOLDER, KEYS, read, recorder
from tests.faults.disk.scratch import put, taken
from tests.faults.disk.states import Moment


def record_of(folder: Path, num: int) -> int:
    """Record some samples without an end; gives how many entries a checkpoint counts on."""
    it = recorder(folder, 1, 0)
    it.__enter__()
    it.append(range(num))
    position = it.position()
    assert position is not None
    assert it.sync(position) == position
    it.append(range(num, num + 8))
    it.position()
    # It goes no further, as if its process had been killed.
    it.error = InterruptedError()
    it.__exit__()
    return position


def samples_file(folder: Path) -> Path:
    """The newest file of rank 0."""
    return max((folder / FOLDER).glob("rank-0.*.samples"))


def test_a_record_that_goes_on_is_never_called_incomplete_again(tmp_path: Path) -> None:
    record_of(tmp_path, 4)
    (tmp_path / FOLDER / "rank-0.incomplete").write_text("the disk was full\n")
    with recorded(tmp_path, taken(tmp_path)) as history, recorder(tmp_path, 2, 7):
        pass
    put(Moment(history, len(history.steps)).synced().tree, str(tmp_path / "after"))
    assert not (tmp_path / "after" / FOLDER / "rank-0.incomplete").exists()


@pytest.mark.parametrize("lost", [slice(-1, None), slice(-300, None), slice(-640, -100)])
def test_what_was_lost_behind_the_last_checkpoint_ails_nobody_once_the_study_goes_on(
    tmp_path: Path, lost: slice
) -> None:
    position = record_of(tmp_path, 4)
    lose(samples_file(tmp_path), lost)
    with pytest.raises(DamagedRecord, match="is not as it was written"):
        read(tmp_path, 0)
    with recorder(tmp_path, 2, position) as it:
        it.append(range(4, 20))
    assert read(tmp_path, 0) == (KEYS[:20], True)


@pytest.mark.parametrize("lost", [slice(0, 512), slice(40, 512), slice(200, 300)])
def test_a_file_that_no_checkpoint_counts_on_ails_nobody_once_the_study_goes_on(tmp_path: Path, lost: slice) -> None:
    position = record_of(tmp_path, 4)
    with recorder(tmp_path, 2, position) as it:
        it.append(range(4, 30))
    lose(samples_file(tmp_path), lost)
    with pytest.raises(DamagedRecord):
        read(tmp_path, 0)
    with recorder(tmp_path, 3, position) as it:
        it.append(range(4, 20))
    assert read(tmp_path, 0) == (KEYS[:20], True)


def lose(file: Path, lost: slice) -> None:
    """Put zeros in the place of bytes of a file."""
    content = bytearray(file.read_bytes())
    content[lost] = bytes(len(content[lost]))
    file.write_bytes(content)
