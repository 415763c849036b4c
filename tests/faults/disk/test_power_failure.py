"""After a power failure at any moment of a save, a restart continues the checkpoint before or the new one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stream_server.server.checkpoint.incarnations import read_incarnations
from tests.faults.disk.model import History
from tests.faults.disk.recording import recorded
from tests.faults.disk.scratch import Scratch, put, taken
from tests.faults.disk.states import Moment, State
from tests.support.checkpoint_stores import restart, save, start, store

WHAT_IS_LEFT: dict[str, Callable[[Moment], State]] = {
    "all": Moment.whole,
    "names": Moment.without_content,
    "what-was-synced": Moment.synced,
}


def recorded_save(folder: Path, *, unheard: tuple[str, ...] = ()) -> History:
    """Save checkpoint 3 into a folder with checkpoints 1 and 2, of which 1 is removed."""
    store(folder, 1, 2)
    with recorded(folder, taken(folder), unheard=unheard) as history:
        assert isinstance(save(folder, 3), Path)
    return history


def found_after_each_step(
    folder: Path, history: History, left: Callable[[Moment], State], look: Callable[[Path], int]
) -> list[int]:
    """The checkpoint that is found after a power failure after each number of steps."""
    folder.mkdir()
    scratch = Scratch(folder)
    numbers = range(len(history.steps) + 1)
    return [look(scratch.put(left(Moment(history, num_steps)).tree)) for num_steps in numbers]


@pytest.mark.parametrize("left", WHAT_IS_LEFT.values(), ids=WHAT_IS_LEFT)
def test_a_crash_at_any_step_leaves_the_checkpoint_before_or_the_new_one_complete(
    tmp_path: Path, left: Callable[[Moment], State]
) -> None:
    history = recorded_save(tmp_path / "store")
    found = found_after_each_step(tmp_path / "crashed", history, left, restart)
    assert len(found) > 40
    assert found == sorted(found)
    assert set(found) == {2, 3}
    # Once it was called committed it survives.
    assert found[-1] == 3


def test_without_syncing_the_model_would_notice(tmp_path: Path) -> None:
    history = recorded_save(tmp_path / "store", unheard=("files", "folders"))
    after = Moment(history, len(history.steps))
    put(after.synced().tree, str(tmp_path / "everything-lost"))
    assert restart(tmp_path / "everything-lost") == 2
    put(after.without_content().tree, str(tmp_path / "content-lost"))
    assert restart(tmp_path / "content-lost") == 2
    assert any(path.name.startswith("000003.damaged") for path in (tmp_path / "content-lost").iterdir())


@pytest.mark.parametrize("left", WHAT_IS_LEFT.values(), ids=WHAT_IS_LEFT)
def test_a_crash_at_the_start_of_an_incarnation_leaves_the_incarnations_before_or_the_new_one(
    tmp_path: Path, left: Callable[[Moment], State]
) -> None:
    start(tmp_path / "store")
    with recorded(tmp_path / "store", taken(tmp_path / "store")) as history:
        start(tmp_path / "store")
    found = found_after_each_step(
        tmp_path / "crashed", history, left, lambda crashed: read_incarnations(crashed).newest
    )
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 2)
