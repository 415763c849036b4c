from pathlib import Path

import pytest

from stream_server.server.run.plan import make_plan
from tests.support.studies import Changes, StudyFolder


def plan_of(tmp_path: Path, changes: Changes) -> dict[str, int]:
    plan = make_plan(StudyFolder(tmp_path).load(changes))
    return {"credit": plan.credit, "spare": plan.spare, "num_slots": plan.num_slots}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"buffer.capacity": 2500, "client.window": "400kB"},
            {"credit": 5, "spare": 250, "num_slots": 2500 + 5 * 5 + 20 + 1 + 250},
            id="a tenth of the capacity",
        ),
        pytest.param(
            {"buffer.capacity": 100, "training.batch_size": 20, "client.window": "400kB"},
            {"credit": 2, "spare": 40, "num_slots": 100 + 2 * 5 + 40 + 1 + 40},
            id="two batches",
        ),
        pytest.param(
            {"buffer.capacity": 2500, "launcher.max_running": 8},
            {"credit": 26, "spare": 312, "num_slots": 2500 + 26 * 12 + 20 + 1 + 312},
            id="all windows together",
        ),
    ],
)
def test_there_are_slots_for_a_full_buffer_all_windows_held_batches_and_what_is_written(
    tmp_path: Path, changes: Changes, expected: dict[str, int]
) -> None:
    assert plan_of(tmp_path, changes) == expected
