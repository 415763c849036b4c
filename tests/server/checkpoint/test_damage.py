"""The handling of a damaged checkpoint; tests/faults/sweep shows that any damage is noticed."""

import os
import random
from pathlib import Path

import pytest

from stream_server.errors import DamagedCheckpoint, NoUsableCheckpoint
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.saver import Saver
from tests.support.checkpoint_stores import content, names, part, restart, save_with, start, store

NAMES = [*content(1), "manifest.json"]


def is_whole(checkpoints: CheckpointFolder, number: int) -> bool:
    try:
        manifest = checkpoints.manifest(number)
    except DamagedCheckpoint:
        return False
    return not checkpoints.verify(manifest, manifest.files)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path: Path, name: str) -> None:
    checkpoints = store(tmp_path, 1)
    path = checkpoints.path(1) / name
    data = path.read_bytes()
    for place in range(len(data)):
        # Each bit in its turn; test_manifest.py flips them all.
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert not is_whole(checkpoints, 1), place
    path.write_bytes(data)
    assert is_whole(checkpoints, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_checkpoint_is_set_aside_with_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    checkpoints = store(tmp_path, 1, 2)
    path = checkpoints.path(2) / name
    path.write_bytes(path.read_bytes() + b"\0")
    assert restart(tmp_path) == 1
    assert names(tmp_path) == {"000001", "000002.damaged"}
    assert name in (tmp_path / "000002.damaged" / "reason.txt").read_text()


def test_when_all_are_damaged_nothing_is_touched_and_no_restart_begins_anew(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1, 2)
    for number in (1, 2):
        (checkpoints.path(number) / "study.state").write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(NoUsableCheckpoint, match=r"2: study\.state has 1 bytes instead of"):
            restart(tmp_path)
        assert names(tmp_path) == {"000001", "000002"}


def test_a_checkpoint_whose_files_are_links_to_the_same_bytes_is_good(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1)
    for number, name in enumerate(NAMES):
        path = checkpoints.path(1) / name
        path.rename(tmp_path / f"elsewhere-{number}")
        path.symlink_to(tmp_path / f"elsewhere-{number}")
    assert restart(tmp_path) == 1


@pytest.mark.parametrize("name", ["rank-1/rank.state", "manifest.json"])
def test_a_pipe_in_the_place_of_a_file_is_damage_and_not_waited_for(tmp_path: Path, name: str) -> None:
    checkpoints = store(tmp_path, 1, 2)
    path = checkpoints.path(2) / name
    path.unlink()
    os.mkfifo(path)
    assert restart(tmp_path) == 1


def test_random_damage_of_a_large_file_is_noticed(tmp_path: Path) -> None:
    start(tmp_path)
    checkpoints = CheckpointFolder(tmp_path)
    generator = random.Random(0)
    data = generator.randbytes(9 << 20)
    with Saver(checkpoints, incarnation=1, rank=0) as saver:
        assert isinstance(save_with(saver, 1, [part("rank-0/samples.rows", data)]), Path)
    path = checkpoints.path(1) / "rank-0/samples.rows"
    for _ in range(40):
        place = generator.randrange(len(data))
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 1 << generator.randrange(8)]))
            file.flush()
            assert not is_whole(checkpoints, 1)
            file.seek(place)
            file.write(data[place : place + 1])
    assert is_whole(checkpoints, 1)
