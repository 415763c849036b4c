"""The starts of the server, and which of them may still speak."""

import contextlib
import fcntl
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import DamagedCheckpoint, OtherFormat, StaleIncarnation
from stream_server.server.checkpoint.incarnations import (
    FORMAT,
    INCARNATIONS_FILE,
    LOCK_FILE,
    Incarnation,
    Incarnations,
    begin_incarnation,
    read_incarnations,
)
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from tests.support.checkpoint_stores import start
from tests.support.lesser_disks import without_locks


def incarnations(*bases: int) -> Incarnations:
    return Incarnations(
        starts=tuple(
            Incarnation(incarnation=number, base=base, batches=0, ranks=2, started="today")
            for number, base in enumerate(bases, 1)
        )
    )


def test_without_a_file_there_was_no_start(tmp_path: Path) -> None:
    assert read_incarnations(tmp_path / "nothing").newest == 0


def test_starts_count_from_1_and_come_back_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    begun = [begin_incarnation(folder, base=base, batches=base, ranks=3, started=f"day {base}") for base in (0, 0, 7)]
    assert [incarnation.incarnation for incarnation in begun] == [1, 2, 3]
    assert read_incarnations(folder).starts == tuple(begun)


def test_a_checkpoint_of_the_newest_incarnation_is_valid() -> None:
    assert incarnations(0, 5).is_valid(checkpoint=9, incarnation=2)


def test_a_checkpoint_that_a_later_incarnation_continues_is_valid() -> None:
    assert incarnations(0, 5).is_valid(checkpoint=5, incarnation=1)
    assert incarnations(0, 5).is_valid(checkpoint=4, incarnation=1)


def test_a_checkpoint_that_an_old_server_commits_after_a_new_one_began_is_ignored() -> None:
    assert not incarnations(0, 5).is_valid(checkpoint=6, incarnation=1)
    assert not incarnations(0, 5, 8).is_valid(checkpoint=6, incarnation=1)


def test_every_later_incarnation_must_have_continued_it() -> None:
    assert not incarnations(0, 5, 4, 9).is_valid(checkpoint=5, incarnation=1)


def test_a_checkpoint_of_an_unknown_incarnation_is_not_valid() -> None:
    assert not incarnations(0).is_valid(checkpoint=1, incarnation=2)
    assert not incarnations(0).is_valid(checkpoint=1, incarnation=0)


def test_an_older_incarnation_is_stale() -> None:
    with pytest.raises(
        StaleIncarnation, match="this server is incarnation 1 of the study, but incarnation 2 was started at today"
    ):
        incarnations(0, 0).check(1)


def test_an_incarnation_that_is_not_listed_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match="must have incarnation 2, but ends with incarnation 1"):
        incarnations(0).check(2)


def test_a_file_that_has_lost_its_end_is_damage(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path)
    path = tmp_path / INCARNATIONS_FILE
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DamagedCheckpoint):
            read_incarnations(tmp_path)
    path.write_bytes(data + b'{"incarnation": 3, "ba')
    with pytest.raises(DamagedCheckpoint):
        read_incarnations(tmp_path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path)
    path = tmp_path / INCARNATIONS_FILE
    data = path.read_bytes()
    for place in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with pytest.raises(DamagedCheckpoint):
                read_incarnations(tmp_path)


@given(junk=st.binary())
def test_junk_is_damage_or_no_start_at_all(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / INCARNATIONS_FILE).write_bytes(junk)
    with contextlib.suppress(DamagedCheckpoint):
        assert read_incarnations(folder).newest == 0


def written(folder: Path, **changes: object) -> None:
    """Change entries of the list of three starts, with a checksum that fits."""
    for _ in range(3):
        start(folder)
    plain = parse_checksummed_json((folder / INCARNATIONS_FILE).read_bytes())
    (folder / INCARNATIONS_FILE).write_bytes(checksummed_json({**plain, **changes}))


def test_a_missing_start_is_noticed(tmp_path: Path) -> None:
    starts = [asdict(start) for start in incarnations(0, 0, 0).starts]
    written(tmp_path, starts=[starts[0], starts[2]])
    with pytest.raises(DamagedCheckpoint, match=r"must list the incarnations 1, 2, …, but has \[1, 3\]"):
        read_incarnations(tmp_path)


def test_a_list_of_another_release_is_told_from_damage(tmp_path: Path) -> None:
    written(tmp_path, format=FORMAT + 1)
    with pytest.raises(OtherFormat, match=f"has format {FORMAT + 1}, and this release reads format {FORMAT}"):
        read_incarnations(tmp_path)


@pytest.mark.parametrize("wrong", [{"base": -1}, {"ranks": "2"}, {"started": None}, {"base": True}, {"more": 1}])
def test_a_start_with_a_wrong_entry_is_damage(tmp_path: Path, wrong: dict[str, object]) -> None:
    written(tmp_path, starts=[{**asdict(incarnations(0).starts[0]), **wrong}])
    with pytest.raises(DamagedCheckpoint):
        read_incarnations(tmp_path)


def test_two_servers_cannot_begin_at_the_same_time(tmp_path: Path) -> None:
    start(tmp_path)
    with open(tmp_path / LOCK_FILE) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StaleIncarnation, match="another server is being started on"):
            start(tmp_path)
    assert start(tmp_path).incarnation == 2


def test_without_locks_a_start_begins_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`StudyLock` keeps a second one out."""
    without_locks(monkeypatch)
    assert [start(tmp_path).incarnation for _ in range(2)] == [1, 2]


def test_what_a_start_left_when_it_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{INCARNATIONS_FILE}x1y2.tmp").write_bytes(b"{")
    start(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {INCARNATIONS_FILE, LOCK_FILE}
