"""A sample of `python -m tests.campaigns corruption`."""

from pathlib import Path

import pytest

from stream_server.server.checkpoint.folder import CheckpointFolder
from tests.campaigns import Tally
from tests.faults.sweep.campaign import scratch
from tests.faults.sweep.corruption.campaign import DamagedFiles
from tests.faults.sweep.corruption.stores import checkpoints

NUM_CASES = 300


def swept(folder: Path, seed: int, only: str = "") -> Tally:
    return Tally.of(DamagedFiles(folder=folder, seed=seed, cases=NUM_CASES, only=only).run())


@pytest.mark.slow
def test_whatever_becomes_of_a_file_a_restart_does_not_believe_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tally = swept(tmp_path, int(request.config.option.hypothesis_seed))
    assert tally.violations == []
    assert tally.cases["all"] > 0.8 * NUM_CASES
    assert set(tally.totals) > {"refused in words", "set aside, the one before used"}


def test_the_checkpoint_that_is_damaged_could_be_continued() -> None:
    with scratch() as folder:
        checkpoints.make(folder / "checkpoints", 0)
        assert checkpoints.loads(folder / "checkpoints")


def test_a_restart_that_does_not_look_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointFolder, "verify", lambda *_: {})
    assert swept(tmp_path, 0, only="checkpoints/000002/rank-0/samples.rows").violations
