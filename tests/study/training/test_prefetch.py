"""`training.prefetch` changes when batches are formed, and nothing else: also when the server is killed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.study.restarts.test_replay import POINTS
from tests.study.restarts.test_replay import SETTINGS as REPLAYED
from tests.support.killing import checkpoints, killed_at, model_of, run_through
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

PREFETCH: dict[str, Any] = {"training.prefetch": 2}


@pytest.mark.full
def test_a_replay_with_it_that_is_killed_ends_with_the_weights_of_one_without_it(recorded: Run, tmp_path: Path) -> None:
    settings = REPLAYED | {
        "server.class": "normalizing_server.py:NoisyNormalizingServer",
        "normalization.fields": ["signal"],
        "normalization.every_batches": 3,
        "buffer.policy": "reservoir",
        "training.draws_per_sample": 3,
    }
    arguments = ["--replay", str(recorded.output_dir)]
    without = run_study(NUMPY_STUDY, tmp_path / "without", settings=settings, arguments=arguments)
    points = (POINTS[0], POINTS[2])
    ahead = run_through(points, NUMPY_STUDY, tmp_path / "with", settings=settings | PREFETCH, arguments=arguments)
    assert_complete(ahead, num_simulations=4)
    assert ahead.report["restarts"] == len(points)
    for count in ("draws", "batches", "batches_per_rank", "updates", "validation"):
        assert ahead.report[count] == without.report[count]
    assert model_of(ahead.output_dir) == model_of(without.output_dir)
    assert "prefetch" in ahead.report["phases_s"]
    assert "prefetch" not in without.report["phases_s"]


@pytest.mark.full
@pytest.mark.parametrize("policy", ["fifo", "reservoir"])
def test_what_was_drawn_ahead_is_trained_on_another_number_of_ranks_after_a_kill_and_after_an_end(
    tmp_path: Path, policy: str
) -> None:
    output_dir = tmp_path / "run"
    # One simulation after the other: data are left at the second checkpoint.
    settings = {"study.simulations": 4, "launcher.max_running": 1, "buffer.policy": policy}
    settings |= {"checkpoint.every_batches": 1, **PREFETCH}
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    manifest = output_dir / "checkpoints" / checkpoints(output_dir)[-1] / "manifest.json"
    num_batches = json.loads(manifest.read_text())["batches"] + 3
    ended = run_study(NUMPY_STUDY, output_dir, settings=settings | {"training.max_batches": num_batches})
    assert (ended.exit_code, ended.report["exit_reason"], ended.report["batches"]) == (0, "max_batches", num_batches)
    assert ended.account["accepted"] == ended.account["trained"] + sum(ended.account["untrained_reasons"].values())
    more = settings | {"training.prefetch": 3}
    done = run_study(NUMPY_STUDY, output_dir, num_ranks=2, settings=more, arguments=["--resume"])
    assert_complete(done, num_simulations=4)
    assert done.account["trained"] == 80
    assert done.report["restarts"] == 2
    if policy == "fifo":
        assert done.report["draws"] == 80


@pytest.mark.full
@pytest.mark.parametrize(
    ("point", "num_ranks"), [("server.trained=kill@4", 1), ("server.trained=kill@4", 2), ("server.before_end=kill", 2)]
)
def test_a_live_study_with_torch_and_it_is_killed_and_loses_nothing(tmp_path: Path, point: str, num_ranks: int) -> None:
    settings = {"checkpoint.every_batches": 2, "server.class": "torch_server.py:TinyServer", **PREFETCH}
    done = run_through([point], NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=settings)
    assert_complete(done, num_simulations=6)
    assert done.account["trained"] == done.report["draws"] == 120
