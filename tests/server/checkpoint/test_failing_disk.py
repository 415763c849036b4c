"""Whatever system call of a save fails, what was committed before stays, and nothing half-written is left."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.server.checkpoint.failed_saves import reason_of
from stream_server.storage import disk as layer
from tests.faults.disk.scratch import folder_in_memory
from tests.support.checkpoint_stores import SaveOutcome, names, restart, save, store
from tests.support.failing_disk import FailingOs, from_call

CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir", "posix_fadvise")
REMOVING = ("unlink", "rmdir")


def failing_saver(first: int, code: int, *, lasting: bool) -> FailingOs:
    return FailingOs(from_call(first, lasting=lasting), code, calls=CALLS, thread="checkpoint-")


@pytest.fixture
def top() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


def save_on(folder: Path, disk: FailingOs) -> SaveOutcome:
    store(folder, 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "os", disk)
        return save(folder, 3)


def num_calls(folder: Path) -> int:
    disk = failing_saver(0, 0, lasting=False)
    assert isinstance(save_on(folder, disk), Path)
    return disk.num_calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
def test_a_failure_at_any_call_leaves_a_complete_checkpoint(top: Path, code: int, lasting: bool) -> None:
    total = num_calls(top / "whole")
    assert total > 30
    for first in range(1, total + 1):
        folder = top / str(first)
        disk = failing_saver(first, code, lasting=lasting)
        outcome = save_on(folder, disk)
        if isinstance(outcome, Exception) and not lasting and disk.failed[0] not in REMOVING:
            assert names(folder) in ({"000001", "000002"}, {"000001", "000002", "000003"}), first
        found = restart(folder)
        assert found == 3 if isinstance(outcome, Path) else found in (2, 3), first


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_the_next_save_after_a_failure_succeeds(top: Path, code: int) -> None:
    total = num_calls(top / "whole")
    for first in range(1, total + 1, 3):
        folder = top / str(first)
        save_on(folder, failing_saver(first, code, lasting=False))
        assert isinstance(save(folder, 4), Path), first
        assert restart(folder) == 4


def test_a_full_disk_is_told_in_plain_words(tmp_path: Path) -> None:
    outcome = save_on(tmp_path / "store", failing_saver(8, errno.ENOSPC, lasting=True))
    assert isinstance(outcome, OSError)
    reason = reason_of(outcome)
    assert reason.startswith("the disk is full")
    assert "MiB are free" in reason
