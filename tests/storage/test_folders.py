"""Folders that are on disk completely or not at all."""

from pathlib import Path

import pytest

from stream_server.errors import DamagedCheckpoint
from stream_server.storage import folders
from stream_server.storage.checksums import ChecksumFile, FileRecord
from stream_server.storage.folders import (
    FolderWriter,
    damaged_files,
    records_from_json,
    records_to_json,
    replace_folder,
)


def write(folder: Path, data: bytes) -> FileRecord:
    with replace_folder(folder) as writer:
        return writer.write("deep/file", lambda file: file.write(data))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    write(tmp_path / "model", b"first")
    record = write(tmp_path / "model", b"second")
    assert (tmp_path / "model/deep/file").read_bytes() == b"second"
    assert damaged_files(tmp_path / "model", {"deep/file": record}) == {}
    assert names(tmp_path) == ["model"]


def test_what_raises_while_a_folder_is_written_leaves_the_older_one(tmp_path: Path) -> None:
    write(tmp_path / "model", b"first")

    def fail(file: ChecksumFile) -> None:
        file.write(b"second")
        raise KeyError

    with pytest.raises(KeyError), replace_folder(tmp_path / "model") as writer:
        writer.write("file", fail)
    assert (tmp_path / "model/deep/file").read_bytes() == b"first"
    assert names(tmp_path) == ["model"]


def test_a_rename_that_fails_leaves_the_older_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model", b"first")
    rename = folders.rename_folder

    def fail(old: Path, new: Path) -> None:
        if old.suffix == ".tmp":
            raise OSError("the disk fails")
        rename(old, new)

    monkeypatch.setattr(folders, "rename_folder", fail)
    with pytest.raises(OSError, match="the disk fails"):
        write(tmp_path / "model", b"second")
    assert (tmp_path / "model/deep/file").read_bytes() == b"first"
    assert names(tmp_path) == ["model"]


def test_an_older_folder_that_lost_its_name_in_a_crash_gets_it_back(tmp_path: Path) -> None:
    write(tmp_path / "model", b"first")
    (tmp_path / "model").rename(tmp_path / "model.old")
    (tmp_path / "model.tmp").mkdir()
    with pytest.raises(KeyError), replace_folder(tmp_path / "model"):
        raise KeyError
    assert (tmp_path / "model/deep/file").read_bytes() == b"first"


def test_what_a_crash_has_left_of_a_folder_is_not_in_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "model.tmp").mkdir()
    (tmp_path / "model.tmp" / "torn").write_bytes(b"fir")
    write(tmp_path / "model", b"second")
    assert names(tmp_path / "model") == ["deep"]
    assert names(tmp_path) == ["model"]


def test_a_writer_removes_what_it_has_written_and_nothing_of_others(tmp_path: Path) -> None:
    first, second = FolderWriter(tmp_path / "shared"), FolderWriter(tmp_path / "shared")
    first.write("a/file", lambda file: file.write(b"a"))
    second.write("b/file", lambda file: file.write(b"b"))
    first.remove()
    assert names(tmp_path / "shared") == ["b"]
    second.remove()
    assert names(tmp_path) == []


def test_a_file_that_is_missing_or_another_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    writer = FolderWriter(tmp_path)
    files = {
        name: writer.write(name, lambda file: file.write(b"data")) for name in ("flipped", "short", "gone", "good")
    }
    (tmp_path / "flipped").write_bytes(b"dara")
    (tmp_path / "short").write_bytes(b"dat")
    (tmp_path / "gone").unlink()
    assert damaged_files(tmp_path, files) == {
        "flipped": "flipped does not match its checksum",
        "short": "short has 3 bytes instead of 4",
        "gone": "gone cannot be read: No such file or directory",
    }
    assert damaged_files(tmp_path, files, ["good"]) == {}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//x", "./x", "a\nb"])
def test_a_list_of_files_names_none_outside_of_the_folder(path: str) -> None:
    record = FileRecord(num_bytes=1, xxh3="0" * 32)
    assert records_from_json(records_to_json({"a/x": record})) == {"a/x": record}
    with pytest.raises(DamagedCheckpoint, match="paths within its folder"):
        records_from_json({path: record.to_json()})
