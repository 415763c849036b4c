"""The starts of the server, and which of them may still speak."""

import contextlib
import fcntl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import DamagedCheckpoint, StaleEpoch
from stream_server.server.checkpoint.epochs import EPOCHS_FILE, LOCK_FILE, Epoch, Epochs, begin_epoch, read_epochs
from tests.server.checkpoint.stores import start


def epochs(*bases: int) -> Epochs:
    return Epochs(
        starts=tuple(
            Epoch(epoch=number, base=base, batches=0, ranks=2, started="today") for number, base in enumerate(bases, 1)
        )
    )


def test_without_a_file_there_was_no_start(tmp_path: Path) -> None:
    assert read_epochs(tmp_path / "nothing").newest == 0


def test_starts_count_from_1_and_come_back_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    begun = [begin_epoch(folder, base=base, batches=base, ranks=3, started=f"day {base}") for base in (0, 0, 7)]
    assert [epoch.epoch for epoch in begun] == [1, 2, 3]
    assert read_epochs(folder).starts == tuple(begun)


def test_a_generation_of_the_newest_epoch_is_valid() -> None:
    assert epochs(0, 5).is_valid(generation=9, epoch=2)


def test_a_generation_that_a_later_epoch_continues_is_valid() -> None:
    assert epochs(0, 5).is_valid(generation=5, epoch=1)
    assert epochs(0, 5).is_valid(generation=4, epoch=1)


def test_a_generation_that_an_old_server_commits_after_a_new_one_began_is_ignored() -> None:
    assert not epochs(0, 5).is_valid(generation=6, epoch=1)
    assert not epochs(0, 5, 8).is_valid(generation=6, epoch=1)


def test_every_later_epoch_must_have_continued_it() -> None:
    assert not epochs(0, 5, 4, 9).is_valid(generation=5, epoch=1)


def test_a_generation_of_an_unknown_epoch_is_not_valid() -> None:
    assert not epochs(0).is_valid(generation=1, epoch=2)
    assert not epochs(0).is_valid(generation=1, epoch=0)


def test_an_older_epoch_is_stale() -> None:
    with pytest.raises(StaleEpoch, match="this server is epoch 1 of the study, but epoch 2 was started at today"):
        epochs(0, 0).check(1)


def test_an_epoch_that_is_not_listed_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match="must have epoch 2, but ends with epoch 1"):
        epochs(0).check(2)


def test_a_file_that_has_lost_its_end_is_damage(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path)
    path = tmp_path / EPOCHS_FILE
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DamagedCheckpoint):
            read_epochs(tmp_path)
    path.write_bytes(data + b'{"epoch": 3, "ba')
    with pytest.raises(DamagedCheckpoint):
        read_epochs(tmp_path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path)
    path = tmp_path / EPOCHS_FILE
    data = path.read_bytes()
    for place in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with pytest.raises(DamagedCheckpoint):
                read_epochs(tmp_path)


@given(junk=st.binary())
def test_junk_is_damage_or_no_start_at_all(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / EPOCHS_FILE).write_bytes(junk)
    with contextlib.suppress(DamagedCheckpoint):
        assert read_epochs(folder).newest == 0


def test_a_missing_line_is_noticed(tmp_path: Path) -> None:
    for _ in range(3):
        start(tmp_path)
    path = tmp_path / EPOCHS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(DamagedCheckpoint, match=r"must list the epochs 1, 2, …, but has \[1, 3\]"):
        read_epochs(tmp_path)


def test_two_servers_cannot_begin_at_the_same_time(tmp_path: Path) -> None:
    start(tmp_path)
    with open(tmp_path / LOCK_FILE) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StaleEpoch, match="another server is being started on"):
            start(tmp_path)
    assert start(tmp_path).epoch == 2


def test_what_a_start_left_when_it_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{EPOCHS_FILE}x1y2.tmp").write_bytes(b"{")
    start(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {EPOCHS_FILE, LOCK_FILE}
