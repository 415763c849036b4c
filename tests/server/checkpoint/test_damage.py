"""Whatever happens to the bytes of a generation is noticed, and the one before is used."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_server.errors import DamagedCheckpoint, NoUsableCheckpoint
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.saver import Saved, Saver
from tests.server.checkpoint.stores import content, manifest_of, names, part, restart, settle, start, store

NAMES = [*content(1), "manifest.json"]


def is_whole(generations: Generations, number: int) -> bool:
    try:
        manifest = generations.manifest(number)
    except DamagedCheckpoint:
        return False
    return not generations.verify(manifest, manifest.files)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path: Path, name: str) -> None:
    generations = store(tmp_path, 1)
    path = generations.path(1) / name
    data = path.read_bytes()
    for place in range(len(data)):
        # Each bit in its turn; test_manifest.py flips them all.
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert not is_whole(generations, 1), place
    path.write_bytes(data)
    assert is_whole(generations, 1)


def truncated(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def deleted(path: Path, _: Path) -> None:
    path.unlink()


def extended(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def extended_by_a_line(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def swapped(path: Path, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def zeroed(path: Path, _: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def made_a_folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES = [
    truncated,
    emptied,
    deleted,
    extended,
    extended_by_a_line,
    swapped,
    zeroed,
    made_a_folder,
    unreadable,
]


CHANGES_NOTHING = [("rank-1/rank.state", damage) for damage in (truncated, emptied, zeroed)]
CASES = [(name, damage) for name in NAMES for damage in DAMAGES if (name, damage) not in CHANGES_NOTHING]


@pytest.mark.parametrize(("name", "damage"), CASES, ids=lambda it: it if isinstance(it, str) else it.__name__)
def test_a_damaged_generation_is_set_aside_and_the_one_before_used(
    tmp_path: Path, name: str, damage: Callable[[Path, Path], None]
) -> None:
    generations = store(tmp_path, 1, 2)
    top = generations.path(2)
    damage(top / name, top / ("study.state" if name != "study.state" else "model/model.state"))
    assert restart(tmp_path) == 1
    assert names(tmp_path) == {"000001", "000002.damaged"}
    assert name in (tmp_path / "000002.damaged" / "reason.txt").read_text()


def test_a_generation_under_another_number_is_noticed(tmp_path: Path) -> None:
    generations = store(tmp_path, 1, 2)
    shutil.rmtree(generations.path(2))
    shutil.copytree(generations.path(1), generations.path(2))
    assert restart(tmp_path) == 1


def test_the_file_of_another_generation_is_noticed(tmp_path: Path) -> None:
    generations = store(tmp_path, 1, 2)
    shutil.copy(generations.path(1) / "study.state", generations.path(2) / "study.state")
    assert restart(tmp_path) == 1


def test_when_all_are_damaged_nothing_is_touched_and_no_restart_begins_anew(tmp_path: Path) -> None:
    generations = store(tmp_path, 1, 2)
    for number in (1, 2):
        (generations.path(number) / "study.state").write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(NoUsableCheckpoint, match=r"2: study\.state has 1 bytes instead of"):
            restart(tmp_path)
        assert names(tmp_path) == {"000001", "000002"}


def test_random_damage_of_a_large_file_is_noticed(tmp_path: Path) -> None:
    start(tmp_path)
    generations = Generations(tmp_path)
    generator = random.Random(0)
    data = generator.randbytes(9 << 20)
    with Saver(generations, epoch=1, rank=0) as saver:
        saver.begin(1, [part("rank-0/samples.rows", data)])
        saved = settle(saver)
        assert isinstance(saved, Saved)
        saver.commit(1, manifest_of(1, saved.files))
        settle(saver)
    path = generations.path(1) / "rank-0/samples.rows"
    for _ in range(40):
        place = generator.randrange(len(data))
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 1 << generator.randrange(8)]))
            file.flush()
            assert not is_whole(generations, 1)
            file.seek(place)
            file.write(data[place : place + 1])
    assert is_whole(generations, 1)
