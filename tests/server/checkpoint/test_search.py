"""Which checkpoint a start continues; all ranks find out together."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from stream_server.errors import NoUsableCheckpoint
from stream_server.server.checkpoint.folder import FORMAT, CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import INCARNATIONS_FILE
from stream_server.server.checkpoint.search import dealt, find_usable
from stream_server.storage.checksums import FileRecord, record_of
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.checkpoint_stores import names, restart, start, store


def test_a_study_that_was_never_saved_has_none(tmp_path: Path) -> None:
    assert restart(tmp_path / "nothing") == 0
    start(tmp_path)
    assert restart(tmp_path) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_all_ranks_find_the_same_newest_whole_checkpoint(tmp_path: Path, size: int) -> None:
    checkpoints = store(tmp_path, 1, 2, 3, 4)
    (checkpoints.path(4) / "manifest.json").write_bytes(b"junk")
    (checkpoints.path(3) / "rank-1/samples.rows").write_bytes(b"junk")

    def search(ranks: ThreadRanks) -> Manifest | None:
        return find_usable(CheckpointFolder(tmp_path), ranks)

    found = on_ranks(size, search)
    assert all(it == found[0] for it in found)
    assert found[0] is not None
    assert found[0].checkpoint == 2
    assert names(tmp_path) == {"000001", "000002", "000003.damaged", "000004.damaged"}
    reason = (tmp_path / "000003.damaged" / "reason.txt").read_text()
    assert reason.startswith("rank-1/samples.rows has 4 bytes instead of")


def test_every_file_is_read_by_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, 1)
    read: list[Path] = []

    def noted(path: Path) -> FileRecord:
        read.append(path)
        return record_of(path)

    monkeypatch.setattr("stream_server.storage.folders.record_of", noted)
    on_ranks(3, lambda ranks: find_usable(CheckpointFolder(tmp_path), ranks))
    assert sorted(path.relative_to(tmp_path / "000001").as_posix() for path in read) == sorted(
        CheckpointFolder(tmp_path).manifest(1).files
    )


def test_all_ranks_hear_that_there_is_no_usable_checkpoint(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1)
    (checkpoints.path(1) / "study.state").unlink()

    def search(ranks: ThreadRanks) -> str:
        with pytest.raises(NoUsableCheckpoint) as caught:
            find_usable(CheckpointFolder(tmp_path), ranks)
        return str(caught.value)

    [text, same] = on_ranks(2, search)
    assert text == same
    assert "1: study.state cannot be read: No such file or directory" in text
    assert text.endswith("--fresh begins the study anew")


def test_a_study_whose_checkpoints_are_gone_is_not_begun_anew(tmp_path: Path) -> None:
    store(tmp_path, 1)
    start(tmp_path, base=1)
    (tmp_path / "000001").rename(tmp_path / "elsewhere")
    with pytest.raises(NoUsableCheckpoint, match="earlier ones are gone"):
        restart(tmp_path)


def test_a_study_of_which_all_was_set_aside_is_not_begun_anew(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1)
    checkpoints.set_aside(1, "by hand")
    with pytest.raises(NoUsableCheckpoint, match="earlier ones are gone"):
        restart(tmp_path)


def test_without_the_incarnations_no_checkpoint_can_be_trusted(tmp_path: Path) -> None:
    store(tmp_path, 1)
    (tmp_path / INCARNATIONS_FILE).unlink()
    with pytest.raises(NoUsableCheckpoint, match="checkpoint 1 is of incarnation 1, but the newest is 0"):
        restart(tmp_path)
    (tmp_path / INCARNATIONS_FILE).write_bytes(b"junk\n")
    with pytest.raises(NoUsableCheckpoint, match=r"incarnations\.json is damaged"):
        restart(tmp_path)


def test_a_checkpoint_of_another_release_is_neither_used_nor_set_aside(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1, 2)
    newer = replace(checkpoints.manifest(2), format=FORMAT + 1)
    (checkpoints.path(2) / "manifest.json").write_bytes(newer.to_bytes())
    with pytest.raises(NoUsableCheckpoint, match=f"it has format {FORMAT + 1}, and this release reads format {FORMAT}"):
        restart(tmp_path)
    assert names(tmp_path) == {"000001", "000002"}


def test_what_cannot_be_set_aside_does_not_keep_a_study_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = store(tmp_path, 1, 2)
    (checkpoints.path(2) / "study.state").unlink()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    assert restart(tmp_path) == 1
    assert "could not be set aside" in caplog.text


def test_files_are_dealt_by_their_size() -> None:
    files = {name: FileRecord(num_bytes=size, xxh3="") for name, size in zip("abcdef", [9, 5, 4, 1, 1, 0], strict=True)}
    assert dealt(files, 2) == [["a", "d", "f"], ["b", "c", "e"]]
    assert dealt({}, 3) == [[], [], []]
