"""The checkpoint folder: what is kept, removed, set aside and refused."""

import os
from pathlib import Path

import pytest

from stream_server.errors import DamagedCheckpoint, StaleIncarnation
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.storage import folders as module
from tests.support.checkpoint_stores import content, names, read, restart, save, start, store


def test_a_committed_checkpoint_has_its_files_and_a_manifest(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1)
    assert names(tmp_path) == {"000001"}
    assert read(tmp_path, 1) == content(1)
    manifest = checkpoints.manifest(1)
    assert (manifest.checkpoint, manifest.incarnation, set(manifest.files)) == (1, 1, set(content(1)))
    assert checkpoints.verify(manifest, manifest.files) == {}


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store(tmp_path, 1, 2)
    for number in (3, 4, 7):
        save(tmp_path, number, keep=2)
    assert names(tmp_path) == {"000004", "000007"}


def test_milestones_are_kept_for_ever(tmp_path: Path) -> None:
    start(tmp_path)
    for number in range(1, 6):
        marks = {"milestone.txt": b"it stays"} if number in (1, 3) else {}
        assert isinstance(save(tmp_path, number, files=content(number) | marks), Path)
    assert names(tmp_path) == {"000001", "000003", "000004", "000005"}


def test_the_only_good_checkpoint_is_never_removed(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1, 2, 3)
    for number in (2, 3):
        (checkpoints.path(number) / "manifest.json").unlink()
    assert CheckpointFolder(tmp_path, keep=1).prune() == []
    assert names(tmp_path) == {"000001", "000002", "000003"}


def test_checkpoints_that_do_not_count_do_not_push_out_those_that_do(tmp_path: Path) -> None:
    store(tmp_path, 1, 2, 3)
    start(tmp_path, base=1)
    assert CheckpointFolder(tmp_path, keep=2).prune() == []
    save(tmp_path, 4, incarnation=2)
    assert names(tmp_path) == {"000001", "000002", "000003", "000004"}


def test_a_checkpoint_half_removed_looks_like_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = store(tmp_path, 1, 2, 3)

    def crash(folder: Path) -> None:
        if folder.exists():
            (folder / "study.state").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "remove_tree", crash)
    with pytest.raises(KeyboardInterrupt):
        CheckpointFolder(tmp_path, keep=2).prune()
    monkeypatch.undo()
    assert names(tmp_path) == {"000001.old", "000002", "000003"}
    assert checkpoints.sweep() == ["000001.old"]
    assert restart(tmp_path) == 3


def test_sweeping_removes_leftovers_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1)
    for name in (
        "000002.incarnation-1.tmp",
        "000003.tmp",
        "000001.old",
        "000004.damaged",
        "000005.incarnation-1",
        "notes.tmp",
    ):
        (tmp_path / name / "rank-0").mkdir(parents=True)
        (tmp_path / name / "rank-0" / "file").write_bytes(b"x")
    assert checkpoints.sweep() == ["000001.old", "000002.incarnation-1.tmp", "000003.tmp"]
    assert names(tmp_path) == {"000001", "000004.damaged", "000005.incarnation-1", "notes.tmp"}


def test_damaged_checkpoints_are_set_aside_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = store(tmp_path, 1, 2)
    assert checkpoints.set_aside(2, "it burnt").name == "000002.damaged"
    save(tmp_path, 2)
    assert checkpoints.set_aside(2, "it burnt again").name == "000002.damaged.2"
    assert (tmp_path / "000002.damaged.2" / "reason.txt").read_text() == "it burnt again\n"
    assert checkpoints.numbers() == [1]
    assert "checkpoint 2 is damaged and was set aside as" in caplog.text


def test_an_older_incarnation_cannot_commit(tmp_path: Path) -> None:
    store(tmp_path, 1)
    start(tmp_path, base=1)
    outcome = save(tmp_path, 2, incarnation=1)
    assert isinstance(outcome, StaleIncarnation)
    assert names(tmp_path) == {"000001"}


def test_an_older_incarnation_that_had_passed_every_check_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, 1)
    rename = os.rename

    def stopped(old: Path, new: Path) -> None:
        # Here the old server sleeps, and a new one is started, which continues checkpoint 1.
        monkeypatch.undo()
        start(tmp_path, base=1)
        rename(old, new)

    monkeypatch.setattr(os, "rename", stopped)
    assert isinstance(save(tmp_path, 2, incarnation=1), Path)
    assert names(tmp_path) == {"000001", "000002"}
    assert restart(tmp_path) == 1


def test_a_checkpoint_of_a_fenced_incarnation_gives_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store(tmp_path, 1, 2)
    start(tmp_path, base=1)
    assert isinstance(save(tmp_path, 2, incarnation=2), Path)
    assert names(tmp_path) == {"000001", "000002", "000002.incarnation-1"}
    assert restart(tmp_path) == 2
    assert CheckpointFolder(tmp_path).manifest(2).incarnation == 2
    assert "of an older start of the server was in the way" in caplog.text


def test_a_damaged_checkpoint_of_the_same_number_gives_way(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, 1, 2)
    (checkpoints.path(2) / "manifest.json").write_bytes(b"junk")
    assert isinstance(save(tmp_path, 2), Path)
    assert names(tmp_path) == {"000001", "000002", "000002.damaged"}


def test_a_checkpoint_that_counts_is_not_replaced(tmp_path: Path) -> None:
    store(tmp_path, 1)
    outcome = save(tmp_path, 1)
    assert isinstance(outcome, FileExistsError)
    assert restart(tmp_path) == 1


def test_an_old_server_writes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    assert checkpoints.temporary(7, 1) != checkpoints.temporary(7, 2)


def test_a_server_whose_incarnation_is_not_listed_cannot_commit(tmp_path: Path) -> None:
    outcome = save(tmp_path, 1)
    assert isinstance(outcome, DamagedCheckpoint)
    assert names(tmp_path) == set()


def test_checkpoints_beyond_six_digits_are_found(tmp_path: Path) -> None:
    store(tmp_path, 999_999, 1_000_000)
    assert CheckpointFolder(tmp_path).numbers() == [999_999, 1_000_000]
    assert restart(tmp_path) == 1_000_000
