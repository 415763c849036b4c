"""A best model is there completely or not at all, whenever its removal ends."""

from pathlib import Path

from stream_server.server.model.best_models import BestFolder
from tests.faults.disk.model import History
from tests.faults.disk.recording import recorded
from tests.faults.disk.scenarios.best import FOLDER, check, keep, there
from tests.faults.disk.scratch import put, taken
from tests.faults.disk.states import Moment


def batches_after_each_step(folder: Path, history: History) -> set[frozenset[int]]:
    """The models that are there when the process, or the machine, ends after any step; each is whole."""
    found = set()
    for num_steps in range(len(history.steps) + 1):
        moment = Moment(history, num_steps)
        for name, state in (("whole", moment.whole()), ("synced", moment.synced())):
            after = folder / f"{name}-{num_steps}"
            put(state.tree, str(after))
            best = BestFolder(after / FOLDER)
            for batch in there(best):
                check(best, batch)
            found.add(frozenset(there(best)))
    return found


def test_a_model_that_is_removed_is_never_there_in_part(tmp_path: Path) -> None:
    best = BestFolder(tmp_path / "disk" / FOLDER)
    for batch in (10, 20):
        keep(best, batch, lambda fact: None)
    with recorded(tmp_path / "disk", taken(tmp_path / "disk")) as history:
        best.keep_only([20])
    assert batches_after_each_step(tmp_path, history) == {frozenset({10, 20}), frozenset({20})}


def test_a_model_that_is_replaced_is_never_there_in_part(tmp_path: Path) -> None:
    best = BestFolder(tmp_path / "disk" / FOLDER)
    keep(best, 10, lambda fact: None)
    with recorded(tmp_path / "disk", taken(tmp_path / "disk")) as history:
        keep(best, 10, lambda fact: None)
    assert batches_after_each_step(tmp_path, history) == {frozenset({10}), frozenset()}
