from pathlib import Path

import pytest

from stream_server.server.intake.credit import credit_per_simulation
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
            {"credit": 5, "spare": 40, "num_slots": 100 + 5 * 5 + 40 + 1 + 40},
            id="two batches",
        ),
        pytest.param(
            {"buffer.capacity": 2500, "launcher.max_running": 8},
            {"credit": 26, "spare": 312, "num_slots": 2500 + 26 * 12 + 20 + 1 + 312},
            id="all windows together",
        ),
        pytest.param(
            {"buffer.capacity": 100, "training.batch_size": 20, "training.prefetch": 2, "client.window": "400kB"},
            {"credit": 5, "spare": 80, "num_slots": 100 + 5 * 5 + 80 + 1 + 80},
            id="batches made ahead",
        ),
        pytest.param(
            {"buffer.capacity": 2500, "client.window": "400kB", "samples.window": {"length": 3, "spacing": 2}},
            {"credit": 5, "spare": 750, "num_slots": 3 * 2500 + 5 * 5 + 3 * 20 + 1 + 750 + 2 * 4 * 5 + 2 * 3},
            id="windows, with the steps of two of each simulation that wait for others",
        ),
    ],
)
def test_there_are_slots_for_a_full_buffer_all_windows_held_batches_and_what_is_written(
    tmp_path: Path, changes: Changes, expected: dict[str, int]
) -> None:
    assert plan_of(tmp_path, changes) == expected


def test_each_rank_of_each_simulation_has_a_connection(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path).load({"launcher.max_running": 8, "simulation.ranks": 3})
    plan = make_plan(config)
    assert plan.connections == 3 * plan.max_clients + 2


@pytest.mark.parametrize(
    ("capacity", "max_simulations", "sample_bytes", "credit"),
    [
        pytest.param(20_000, 1, 4_000, 2_500, id="an eighth of the capacity"),
        pytest.param(20_000, 64, 4_000, 131, id="512 KiB each"),
        pytest.param(1_000, 100, 4_000, 10, id="the capacity once more"),
        pytest.param(1_000, 100, 80_000, 6, id="512 KiB of larger samples"),
        pytest.param(1_000, 100, 1_000_000, 2, id="two steps"),
        pytest.param(20_000, 1, 1_000_000, 67, id="the window of a client"),
    ],
)
def test_the_credit_of_many_simulations_lets_small_steps_share_messages(
    capacity: int, max_simulations: int, sample_bytes: int, credit: int
) -> None:
    window = 64 * 2**20
    assert credit == credit_per_simulation(
        retained_bytes=window, sample_bytes=sample_bytes, capacity=capacity, max_simulations=max_simulations
    )
