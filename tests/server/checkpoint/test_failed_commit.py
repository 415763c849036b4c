"""A commit that fails at its last moment costs the new checkpoint alone, however few are kept."""

import errno
from pathlib import Path

import pytest

from stream_server.server.checkpoint import saver as saver_module
from tests.support.checkpoint_stores import names, restart, save, store


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("place", ["checkpoint.manifest_written", "checkpoint.before_rename"])
def test_a_commit_that_fails_leaves_all_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, keep: int
) -> None:
    store(tmp_path, *range(1, keep + 1))

    def failpoint(name: str) -> None:
        if name == place:
            raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(saver_module, "failpoint", failpoint)
    assert isinstance(save(tmp_path, keep + 1, keep=keep), Exception)
    assert names(tmp_path) == {f"{number:06d}" for number in range(1, keep + 1)}
    assert restart(tmp_path) == keep
