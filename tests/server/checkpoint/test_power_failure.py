"""After a power failure at any moment of a save, a restart continues the generation before or the new one."""

import os
from pathlib import Path

import pytest

from stream_server.server.checkpoint.epochs import read_epochs
from stream_server.server.checkpoint.saver import Committed
from tests.server.checkpoint.recorded_disk import Loss, Recorder, loaded, unload
from tests.server.checkpoint.stores import restart, save, start, store


def recorded_save(folder: Path, *, syncs: bool = True) -> tuple[Recorder, Path]:
    """Save generation 3 into a folder with generations 1 and 2, of which 1 is removed; gives the folder before too."""
    store(folder, 1, 2)
    before = folder.with_name("before")
    unload(loaded(folder), before, Loss.NOTHING)
    recorder = Recorder(folder)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        if not syncs:
            patch.setattr(os, "fsync", lambda descriptor: None)
        assert isinstance(save(folder, 3), Committed)
    return recorder, before


def restarts(tmp_path: Path, recorder: Recorder, before: Path, loss: Loss) -> list[int]:
    """The generation that a restart continues after each number of steps."""
    found = []
    for num_steps in range(len(recorder.steps) + 1):
        crashed = tmp_path / f"crashed-{loss.name}-{num_steps}"
        unload(recorder.after(num_steps, loaded(before)), crashed, loss)
        found.append(restart(crashed))
    return found


@pytest.mark.parametrize("loss", Loss)
def test_a_crash_at_any_step_leaves_the_generation_before_or_the_new_one_complete(tmp_path: Path, loss: Loss) -> None:
    recorder, before = recorded_save(tmp_path / "store")
    found = restarts(tmp_path, recorder, before, loss)
    assert len(found) > 40
    assert found == sorted(found)
    assert set(found) == {2, 3}


@pytest.mark.parametrize("loss", Loss)
def test_a_generation_that_was_called_committed_survives(tmp_path: Path, loss: Loss) -> None:
    recorder, before = recorded_save(tmp_path / "store")
    after = tmp_path / "after"
    unload(recorder.after(len(recorder.steps), loaded(before)), after, loss)
    assert restart(after) == 3


def test_without_syncing_the_model_would_notice(tmp_path: Path) -> None:
    recorder, before = recorded_save(tmp_path / "store", syncs=False)
    assert restarts(tmp_path, recorder, before, Loss.EVERYTHING)[-1] == 2
    damaged = tmp_path / "data-lost"
    unload(recorder.after(len(recorder.steps), loaded(before)), damaged, Loss.DATA)
    assert restart(damaged) == 2
    assert any(path.name.startswith("000003.damaged") for path in damaged.iterdir())


@pytest.mark.parametrize("loss", Loss)
def test_a_crash_at_the_start_of_an_epoch_leaves_the_epochs_before_or_the_new_one(tmp_path: Path, loss: Loss) -> None:
    folder = tmp_path / "store"
    start(folder)
    before = tmp_path / "before"
    unload(loaded(folder), before, Loss.NOTHING)
    recorder = Recorder(folder)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        start(folder)
    found = []
    for num_steps in range(len(recorder.steps) + 1):
        crashed = tmp_path / f"crashed-{num_steps}"
        unload(recorder.after(num_steps, loaded(before)), crashed, loss)
        found.append(read_epochs(crashed).newest)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 2)
