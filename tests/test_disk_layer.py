"""Files that must survive a crash are written through storage/disk.py, under which a test can put another disk."""

import ast
import errno
import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.replay.file_recording import files_in
from stream_server.server.replay.record_reader import segments_in
from stream_server.storage import disk
from tests.support.lesser_disks import without_locks, without_sync_of_folders

PACKAGE = Path(__file__).parent.parent / "stream_server"
FILES = sorted(
    path
    for pattern in (
        *("server/checkpoint/*.py", "server/replay/*.py", "server/model/*.py", "launcher/journal/*.py"),
        *(
            "launcher/simulations/attempt_folders.py",
            "storage/[!d]*.py",
            "server/run/report.py",
            "server/run/output.py",
        ),
        *("messages/connection.py", "server/metrics/writers.py", "machine/study_lock.py"),
    )
    for path in PACKAGE.glob(pattern)
)

# Nothing is promised of these after a crash; or they are the layer's own.
PAST_IT = {
    "storage/links.py": {"os.open"},
    "launcher/simulations/attempt_folders.py": {"os.mkdir", "target.chmod", "(spec.folder / LOG_FILE).symlink_to"}
    | {"(self.folder(*finished) / WORKER_END_FILE).touch", "(self.folder(*following) / WORKER_START_FILE).touch"},
    "server/replay/recorder.py": {"open"},
    "server/metrics/writers.py": {"place.open"},
}

OF_OS = {"mkdir", "makedirs", "rename", "renames", "replace", "link", "symlink", "unlink", "remove", "rmdir"} | {
    *("removedirs", "write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range", "posix_fallocate"),
    *("fsync", "fdatasync", "sync", "truncate", "ftruncate", "fdopen", "open", "chmod", "fchmod", "posix_fadvise"),
}
OF_PATHS = {"mkdir", "rename", "unlink", "rmdir", "touch", "symlink_to", "hardlink_to", "write_text", "write_bytes"} | {
    "chmod",
    "tofile",
}
ALLOWED_OF_SHUTIL = {"disk_usage", "which"}


def changes(source: str) -> Iterator[str]:
    """The functions that are called in a source and may change the disk past the layer."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _changes(node):
            yield ast.unparse(node.func)


def _changes(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("open"):
            return _opens_to_write(call.args[1:], call.keywords)
        case ast.Attribute(ast.Name("os"), "open"):
            return not _reads_only(call)
        case ast.Attribute(ast.Name("os"), name):
            return name in OF_OS
        case ast.Attribute(ast.Name("shutil"), name):
            return name not in ALLOWED_OF_SHUTIL
        case ast.Attribute(ast.Name("tempfile"), _):
            return True
        case ast.Attribute(ast.Name("disk"), _) | ast.Attribute(ast.Attribute(ast.Name("msgspec"), "structs"), _):
            return False
        case ast.Attribute(_, "open"):
            return _opens_to_write(call.args, call.keywords)
        case ast.Attribute(_, "replace"):
            # That of a path; that of a text has two arguments.
            return len(call.args) == 1
        case ast.Attribute(_, name):
            return name in OF_PATHS
    return False


def _opens_to_write(arguments: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    modes = [*arguments[:1], *(keyword.value for keyword in keywords if keyword.arg == "mode")]
    return any(
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set("wax+") & set(mode.value))
        for mode in modes
    )


def _reads_only(call: ast.Call) -> bool:
    flags = {node.attr for node in ast.walk(call.args[1]) if isinstance(node, ast.Attribute)}
    return "O_RDONLY" in flags and flags <= {"O_RDONLY", "O_CLOEXEC", "O_DIRECTORY"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_what_survives_a_crash_is_written_through_the_layer(file: Path) -> None:
    assert set(changes(file.read_text())) == PAST_IT.get(file.relative_to(PACKAGE).as_posix(), set())


def test_every_exception_is_one_of_a_file_that_is_looked_at() -> None:
    assert set(PAST_IT) <= {file.relative_to(PACKAGE).as_posix() for file in FILES}


@pytest.mark.parametrize(
    "source",
    [
        "os.open(path, os.O_WRONLY)",
        "os.open(path, flags)",
        "os.fsync(file)",
        "os.replace(old, new)",
        "path.write_bytes(b'')",
        "path.open('ab')",
        "path.open(mode='w')",
        "open(path, 'r+b')",
        "(folder / name).rename(new)",
        "old.replace(new)",
        "shutil.rmtree(folder)",
        "tempfile.mkstemp()",
    ],
)
def test_a_call_past_the_layer_is_found(source: str) -> None:
    assert list(changes(source)) == [
        source[: source.rindex("(")] if source.count("(") == 1 else "(folder / name).rename"
    ]


def test_reading_is_no_change() -> None:
    source = (
        "open(path); open(path, 'rb'); path.open(); os.open(path, os.O_RDONLY); text.replace('a', 'b'); os.stat(path)"
    )
    assert list(changes(source)) == []


@pytest.mark.parametrize("name", ["disk", "links", "ownership"])
def test_the_layer_needs_the_standard_library_alone(name: str) -> None:
    tree = ast.parse((PACKAGE / f"storage/{name}.py").read_text())
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    others = (froms | names) - {"stream_server.storage.links", "stream_server.storage.ownership"}
    assert {(each or "").partition(".")[0] for each in others} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "error", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES, errno.EBADF, errno.EISDIR]
)
def test_where_folders_cannot_be_synced_this_is_said_once_and_all_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    without_sync_of_folders(monkeypatch, error)
    monkeypatch.setattr(disk, "_warned_of", set[int]())
    with caplog.at_level(logging.WARNING):
        disk.replace_file(tmp_path / "file", b"content")
        disk.rename_file(tmp_path / "file", tmp_path / "renamed")
    assert (tmp_path / "renamed").read_bytes() == b"content"
    [told] = caplog.messages
    assert told.startswith(f"{tmp_path} is on a file system that does not sync folders")
    assert "a power failure may take away its newest files" in told


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_folder_that_was_not_synced_because_the_disk_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    without_sync_of_folders(monkeypatch, error)
    with pytest.raises(OSError, match=r"error|space"):
        disk.replace_file(tmp_path / "file", b"content")


@pytest.mark.parametrize(
    "error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EACCES]
)
def test_a_file_system_without_locks_is_told_from_a_lock_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    with (tmp_path / "file").open("w") as file:
        assert disk.lock(file.fileno())
        without_locks(monkeypatch, error)
        with pytest.raises(disk.NoLocks):
            disk.lock(file.fileno())
        without_locks(monkeypatch, errno.EIO)
        with pytest.raises(OSError, match="Input/output error") as caught:
            disk.lock(file.fileno())
        assert not isinstance(caught.value, disk.NoLocks)
        assert caught.value.filename == file.name


def test_a_folder_that_cannot_be_listed_is_an_error_and_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `Path.glob` of Python 3.13 and `Path.is_dir` of 3.14 would have it: a study would begin anew."""
    assert disk.names_in(tmp_path / "checkpoints") == CheckpointFolder(tmp_path / "checkpoints").numbers() == []

    def refused(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, refused)
    for look in (CheckpointFolder(tmp_path).numbers, partial(segments_in, tmp_path), partial(files_in, tmp_path)):
        with pytest.raises(OSError, match="Input/output error"):
            look()


def test_what_is_done_below_a_held_folder_stays_there_when_its_name_leads_to_another(tmp_path: Path) -> None:
    folder, other, aside = (tmp_path / name for name in ("run", "other", "aside"))
    for it in (folder, other):
        disk.write_file(_made(it) / "report.json", b"of " + it.name.encode())
    (other / "old").mkdir()
    with disk.hold_folder(folder):
        folder.rename(aside)
        folder.symlink_to(other)
        assert not disk.is_in_place(folder)
        disk.replace_file(folder / "report.json", b"new")
        disk.make_folder(folder / "old" / "deep")
        disk.write_file(folder / "old" / "deep" / "file", b"")
        disk.rename_folder(folder / "old", folder / "renamed")
        disk.remove_tree(folder / "renamed")
        with open(folder / "log", "a", opener=disk.open_regular) as file:
            file.write("line")
        assert sorted(disk.names_in(folder)) == ["log", "report.json"]
        with pytest.raises(FileNotFoundError) as caught:
            disk.remove_folder(folder / "gone")
        assert caught.value.filename == str(folder / "gone")
        (tmp_path / "runs").mkdir()
        disk.write_file(folder.with_name("runs") / "file", b"")
    assert sorted(path.name for path in other.iterdir()) == ["old", "report.json"]
    assert (other / "report.json").read_bytes() == b"of other"
    assert (aside / "report.json").read_bytes() == b"new"
    assert (tmp_path / "runs" / "file").exists()
    assert disk.read_file(folder / "report.json") == b"of other"


def _made(folder: Path) -> Path:
    disk.make_folder(folder)
    return folder
