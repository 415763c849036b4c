"""`training.prefetch` changes when batches are formed, and nothing else: also when the server is killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.study.test_replay import POINTS, assert_the_same_after_kills
from tests.study.test_replay import SETTINGS as REPLAYED
from tests.support.killing import killed_at, model_of, run_through
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

PREFETCH: dict[str, Any] = {"training.prefetch": 2}


def test_a_replay_with_it_ends_with_the_weights_of_one_without_it(recorded: Run, tmp_path: Path) -> None:
    settings = REPLAYED | {"buffer.policy": "reservoir", "training.draws_per_sample": 3}
    options: dict[str, Any] = {"num_ranks": 2, "arguments": ["--replay", str(recorded.output_dir)]}
    without = run_study(NUMPY_STUDY, tmp_path / "without", settings=settings, **options)
    killed_at(POINTS[0], NUMPY_STUDY, tmp_path / "with", settings=settings | PREFETCH, **options)
    ahead = run_study(NUMPY_STUDY, tmp_path / "with", settings=settings | PREFETCH, **options)
    assert_complete(ahead, num_simulations=4)
    for count in ("draws", "batches", "batches_per_rank", "updates", "validation"):
        assert ahead.report[count] == without.report[count]
    assert model_of(ahead.output_dir) == model_of(without.output_dir)
    assert "prefetch" in ahead.report["phases_s"]
    assert "prefetch" not in without.report["phases_s"]


def test_a_replay_with_running_statistics_that_is_killed_ends_with_the_same_weights(
    recorded: Run, tmp_path: Path
) -> None:
    settings = REPLAYED | PREFETCH
    settings |= {"server.class": "normalizing_server.py:NormalizingServer", "buffer.policy": "firo"}
    settings |= {"normalization.fields": ["signal"], "normalization.every_batches": 3}
    assert_the_same_after_kills(recorded, tmp_path, POINTS[1:3], num_ranks=1, settings=settings)


@pytest.mark.parametrize("policy", ["fifo", pytest.param("reservoir", marks=pytest.mark.full)])
def test_a_live_study_with_it_goes_on_with_another_number_of_ranks(tmp_path: Path, policy: str) -> None:
    output_dir, settings = tmp_path / "run", {"checkpoint.every_batches": 1, "buffer.policy": policy, **PREFETCH}
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    killed_at("buffer.drawn=kill@9", NUMPY_STUDY, output_dir, num_ranks=1, settings=settings)
    done = run_study(NUMPY_STUDY, output_dir, num_ranks=2, settings={**settings, "training.prefetch": 3})
    assert_complete(done, num_simulations=6)
    assert done.account["trained"] == 120
    assert done.report["restarts"] == 2
    if policy == "fifo":
        assert done.report["draws"] == 120


def test_what_was_drawn_ahead_of_the_last_batch_is_trained_when_the_study_goes_on(tmp_path: Path) -> None:
    settings = {"training.max_batches": 5, "study.simulations": 4, **PREFETCH}
    first = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=1, settings=settings)
    assert (first.exit_code, first.report["exit_reason"]) == (0, "max_batches")
    assert first.account["trained"] == 20
    assert first.account["accepted"] == 20 + sum(first.account["untrained_reasons"].values())
    done = run_study(
        NUMPY_STUDY,
        tmp_path / "run",
        num_ranks=1,
        settings=settings | {"training.max_batches": None},
        arguments=["--resume"],
    )
    assert done.account["trained"] == done.account["accepted"]
    assert done.account["untrained"] == 0


@pytest.mark.parametrize(
    ("point", "num_ranks"),
    [
        ("server.trained=kill@4", 1),
        pytest.param("server.trained=kill@4", 2, marks=pytest.mark.full),
        pytest.param("server.before_end=kill", 2, marks=pytest.mark.full),
    ],
)
def test_a_live_study_with_torch_and_it_is_killed_and_loses_nothing(tmp_path: Path, point: str, num_ranks: int) -> None:
    settings = {"checkpoint.every_batches": 2, "server.class": "torch_server.py:TinyServer", **PREFETCH}
    done = run_through([point], NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=settings)
    assert_complete(done, num_simulations=6)
    assert done.account["trained"] == done.report["draws"] == 120
