"""The door to the disk: folders that are held, locks, and files that a user has named."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from stream_server.storage import disk


def test_in_a_folder_that_is_held_paths_lead_to_it_though_another_one_takes_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with disk.hold_folder(folder):
        assert disk.is_in_place(folder)
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        (tmp_path / "run2").mkdir()
        disk.write_file(folder / "file", b"ours")
        disk.write_file(tmp_path / "run2" / "file", b"of a folder whose name only begins so")
        assert not disk.is_in_place(folder)
    assert (tmp_path / "moved" / "file").read_bytes() == b"ours"
    assert (tmp_path / "run2" / "file").exists()
    assert list(folder.iterdir()) == []


def test_of_folders_that_are_held_the_newest_counts(tmp_path: Path) -> None:
    with disk.hold_folder(tmp_path / "run"), disk.hold_folder(tmp_path / "run" / "record"):
        (tmp_path / "run" / "record").rename(tmp_path / "run" / "moved")
        (tmp_path / "run" / "record").mkdir()
        disk.write_file(tmp_path / "run" / "record" / "file", b"")
    assert (tmp_path / "run" / "moved" / "file").exists()


def test_a_result_takes_the_place_of_a_longer_one(tmp_path: Path) -> None:
    for text in (b"a long table", b"short"):
        with open(tmp_path / "table", "wb", opener=disk.open_output) as file:
            file.write(text)
    assert (tmp_path / "table").read_bytes() == b"short"


def test_a_result_is_not_written_into_a_file_that_has_another_name(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    (tmp_path / "table").hardlink_to(tmp_path / "mine")
    with pytest.raises(PermissionError, match="hard link"), open(tmp_path / "table", "wb", opener=disk.open_output):
        pass
    assert (tmp_path / "mine").read_bytes() == b"precious"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOLCK, disk.NoLocks), (errno.EIO, OSError)])
def test_a_file_system_without_locks_is_told_from_one_that_fails(
    number: int, kind: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with open(tmp_path / "lock", "wb") as file, pytest.raises(OSError, match=os.strerror(number)) as caught:
        disk.lock(file.fileno())
    assert type(caught.value) is kind


def test_a_folder_is_not_made_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(FileExistsError):
        disk.make_folder(tmp_path / "run")
