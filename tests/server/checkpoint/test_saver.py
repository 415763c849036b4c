"""The thread that writes checkpoints: outcomes, failures, releases, and leaving in the middle."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_server.errors import StaleIncarnation
from stream_server.server.checkpoint.failed_saves import FailedSaves, cause_of, reason_of
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.saver import Saver
from stream_server.storage.checksums import CHUNK_BYTES, SMALL_BYTES, ChecksumFile
from stream_server.storage.folders import PendingFile
from tests.support.checkpoint_stores import DEADLINE_S, manifest_of, names, part, save_with, start, store


class Gate:
    """A part that waits in the middle of its file until it is opened."""

    def __init__(self, path: str = "rank-0/slow") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.num_released = 0
        self.part = PendingFile(path=path, write=self._write, release=self._release)

    def _write(self, file: ChecksumFile) -> None:
        file.write(bytes(CHUNK_BYTES))
        self.entered.set()
        assert self.opened.wait(DEADLINE_S)
        file.write(bytes(CHUNK_BYTES))

    def _release(self) -> None:
        self.num_released += 1


class Counted:
    """A part that counts how often it is written and released."""

    def __init__(self, path: str, error: Exception | None = None) -> None:
        self.num_written = 0
        self.num_released = 0
        self._error = error
        self.part = PendingFile(path=path, write=self._write, release=self._release)

    def _write(self, file: ChecksumFile) -> None:
        self.num_written += 1
        file.write(b"some")
        if self._error is not None:
            raise self._error

    def _release(self) -> None:
        self.num_released += 1


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointFolder:
    start(tmp_path)
    return CheckpointFolder(tmp_path)


def saver_of(checkpoints: CheckpointFolder, rank: int = 0) -> Saver:
    return Saver(checkpoints, incarnation=1, rank=rank)


def test_a_save_does_not_keep_the_main_thread(checkpoints: CheckpointFolder) -> None:
    gate = Gate()
    with saver_of(checkpoints) as saver:
        written = saver.write(1, [gate.part])
        assert gate.entered.wait(DEADLINE_S)
        assert not written.done()
        gate.opened.set()
        assert [*written.result(DEADLINE_S)] == ["rank-0/slow"]


def test_where_no_thread_can_be_made_it_fails_before_the_first_save(
    checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="start new thread"):
        saver_of(checkpoints).__enter__()


def test_it_writes_in_a_thread_of_its_rank(checkpoints: CheckpointFolder) -> None:
    found = []
    with saver_of(checkpoints, rank=3) as saver:
        named = PendingFile(path="rank-3/x", write=lambda _: found.append(threading.current_thread().name))
        saver.write(1, [named]).result(DEADLINE_S)
    assert found == ["checkpoint-3_0"]


def test_ranks_write_side_by_side_and_rank_0_commits(checkpoints: CheckpointFolder) -> None:
    with saver_of(checkpoints, 0) as first, saver_of(checkpoints, 1) as second:
        parts = [part("study.state", b"study"), part("rank-0/x", b"0")]
        written = [first.write(1, parts), second.write(1, [part("rank-1/x", b"1")])]
        files = {path: record for it in written for path, record in it.result(DEADLINE_S).items()}
        assert first.commit(manifest_of(1, files)).result(DEADLINE_S) == checkpoints.path(1)
    manifest = checkpoints.manifest(1)
    assert set(manifest.files) == {"study.state", "rank-0/x", "rank-1/x"}
    assert checkpoints.verify(manifest, manifest.files) == {}


def test_a_part_that_fails_fails_the_save_and_leaves_nothing(checkpoints: CheckpointFolder) -> None:
    error = OSError(28, "No space left on device")
    parts = [Counted("rank-0/a"), Counted("rank-0/b", error), Counted("rank-0/c")]
    with saver_of(checkpoints) as saver:
        assert saver.write(1, [it.part for it in parts]).exception(DEADLINE_S) is error
        assert names(checkpoints.folder) == set()
        saver.discard()
        assert saver.write(2, [part("rank-0/x", b"x")]).exception(DEADLINE_S) is None
    assert [it.num_written for it in parts] == [1, 1, 0]
    assert [it.num_released for it in parts] == [1, 1, 1]


def test_the_cause_of_a_full_disk_is_the_same_at_every_file() -> None:
    errors = [OSError(28, "No space left on device", f"checkpoints/{number:06d}/rank-0/a") for number in (1, 2)]
    assert len({reason_of(error) for error in errors}) == 2
    assert {cause_of(error) for error in errors} == {"the disk is full"}
    assert cause_of(TypeError("a Foo")) == reason_of(TypeError("a Foo")) == "TypeError: a Foo"


def test_free_space_is_asked_for_by_the_thread_that_writes(
    checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def disk_usage(folder: Path) -> SimpleNamespace:
        threads.append(threading.current_thread().name)
        return SimpleNamespace(free=3 << 20)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    failures = FailedSaves(rank=0, clock=lambda: 0.0)
    with saver_of(checkpoints) as saver:
        error = saver.write(1, [Counted("rank-0/a", OSError(28, "full")).part]).exception(DEADLINE_S)
    failures.note(error, newest=0)
    free = f"{checkpoints.folder}: 3.0 MiB are free"
    assert failures.warnings == [f"1 of the checkpoints failed: the disk is full ({free})"]
    assert threads == ["checkpoint-0_0"]


def test_parts_are_released_once_even_if_releasing_fails(checkpoints: CheckpointFolder) -> None:
    released = []

    def release(name: str) -> Callable[[], None]:
        def fail() -> None:
            released.append(name)
            raise RuntimeError(name)

        return fail

    parts = [PendingFile(path=f"rank-0/{name}", write=lambda _: None, release=release(name)) for name in "abc"]
    with saver_of(checkpoints) as saver:
        assert isinstance(saver.write(1, parts).exception(DEADLINE_S), RuntimeError)
    assert sorted(released) == ["a", "b", "c"]


def test_a_part_is_released_before_the_next_is_written(checkpoints: CheckpointFolder) -> None:
    first, gate = Counted("rank-0/a"), Gate()
    with saver_of(checkpoints) as saver:
        saver.write(1, [first.part, gate.part])
        assert gate.entered.wait(DEADLINE_S)
        assert (first.num_released, gate.num_released) == (1, 0)
        gate.opened.set()
    assert gate.num_released == 1


def test_a_rank_discards_its_own_files_only(checkpoints: CheckpointFolder) -> None:
    with saver_of(checkpoints, 0) as first:
        with saver_of(checkpoints, 1) as second:
            for rank, saver in enumerate((first, second)):
                saver.write(1, [part(f"rank-{rank}/x", b"x")]).result(DEADLINE_S)
            second.discard()
        left = [path for path in checkpoints.temporary(1, 1).rglob("*") if path.is_file()]
        assert left == [checkpoints.temporary(1, 1) / "rank-0/x"]
        first.discard()
    assert names(checkpoints.folder) == set()


def test_leaving_ends_a_save_that_is_being_written(checkpoints: CheckpointFolder) -> None:
    entered = threading.Event()

    def write_for_ever(file: ChecksumFile) -> None:
        while True:
            file.write(bytes(SMALL_BYTES))
            entered.set()

    last = Counted("rank-0/last")
    with saver_of(checkpoints) as saver:
        saver.write(1, [PendingFile(path="rank-0/endless", write=write_for_ever), last.part])
        assert entered.wait(DEADLINE_S)
    assert (last.num_written, last.num_released) == (0, 1)
    assert names(checkpoints.folder) == set()


def test_leaving_finishes_a_commit(checkpoints: CheckpointFolder) -> None:
    with saver_of(checkpoints) as saver:
        files = saver.write(1, [part("rank-0/x", b"x")]).result(DEADLINE_S)
        saver.commit(manifest_of(1, files))
    assert names(checkpoints.folder) == {"000001"}


def test_a_prune_that_fails_does_not_undo_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = store(tmp_path, 1, 2)

    def fail(*_: object) -> list[int]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CheckpointFolder, "prune", fail)
    with saver_of(checkpoints) as saver:
        assert save_with(saver, 3, [part("rank-0/x", b"x")]) == checkpoints.path(3)
    assert "old checkpoints could not be removed: the disk fails" in caplog.text


def test_a_failed_commit_leaves_nothing(checkpoints: CheckpointFolder) -> None:
    start(checkpoints.folder)
    with saver_of(checkpoints) as saver:
        assert isinstance(save_with(saver, 1, [part("rank-0/x", b"x")]), StaleIncarnation)
    assert names(checkpoints.folder) == set()


def test_a_rank_with_nothing_to_write_has_written(checkpoints: CheckpointFolder) -> None:
    with saver_of(checkpoints, 1) as saver:
        assert saver.write(1, []).result(DEADLINE_S) == {}
