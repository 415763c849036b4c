"""A newer server may begin at any moment of a commit: up to the rename, the older one notices it."""

from pathlib import Path

import pytest

from stream_server.errors import StaleIncarnation
from stream_server.server.checkpoint import saver as saver_module
from tests.support.checkpoint_stores import names, restart, save, start, store


@pytest.mark.parametrize("place", ["checkpoint.before_manifest", "checkpoint.manifest_written"])
def test_a_server_that_lost_its_place_while_it_commits_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store(tmp_path, 1)

    def failpoint(name: str) -> None:
        if name == place:
            start(tmp_path, base=1)

    monkeypatch.setattr(saver_module, "failpoint", failpoint)
    outcome = save(tmp_path, 2, incarnation=1)
    assert isinstance(outcome, StaleIncarnation)
    assert names(tmp_path) == {"000001"}
    assert restart(tmp_path) == 1
