"""Whole studies in rounds: all samples of one are trained before a simulation of the next one begins."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.failpoints import failpoints
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here, run_study, start_study

NUM_HELD_OUT, OF_ROUND, NUM_ROUNDS, NUM_STEPS = 1, 2, 3, 20
ROUNDS: dict[str, Any] = {
    "study.rounds": {"simulations": OF_ROUND, "number": NUM_ROUNDS},
    "server.class": "rounds_server.py:RoundsServer",
    "validation.every_batches": None,
}
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {"buffer.policy": "fifo"},
    "firo": {"buffer.policy": "firo", "buffer.pseudo_epochs": 2, "buffer.watermark": 8},
    "reservoir": {"buffer.policy": "reservoir", "buffer.capacity": 200, "buffer.watermark": 8},
}


def draws(run: Run, num_ranks: int) -> list[tuple[int, int, int]]:
    """Batch, simulation and time step of each sample that any rank has trained, in the order of batches."""
    files = [run.output_dir / f"drawn-{rank}.txt" for rank in range(num_ranks)]
    return sorted(
        tuple(map(int, line.split())) for file in files if file.exists() for line in file.read_text().splitlines()
    )


def events(run: Run, rank: int = 0) -> list[tuple[str, int, int]]:
    lines = (run.output_dir / f"events-{rank}.txt").read_text().splitlines()
    return [(event, int(index), int(batches)) for event, index, batches in map(str.split, lines)]


def round_of(simulation: int) -> int:
    return (simulation - NUM_HELD_OUT) // OF_ROUND


def assert_in_rounds(run: Run, num_ranks: int, *, draws_per_sample: int | None) -> None:
    """No sample was drawn before all of the round before it were; None: each at least once."""
    assert_complete(run, num_simulations=OF_ROUND * NUM_ROUNDS)
    all_draws = draws(run, num_ranks)
    counts = Counter((simulation, step) for _, simulation, step in all_draws)
    trained = range(NUM_HELD_OUT, NUM_HELD_OUT + OF_ROUND * NUM_ROUNDS)
    assert set(counts) == {(simulation, step) for simulation in trained for step in range(NUM_STEPS)}
    assert draws_per_sample is None or set(counts.values()) == {draws_per_sample}
    first: dict[tuple[int, int], int] = {}
    for batch, simulation, step in all_draws:
        first.setdefault((simulation, step), batch)
    begun = [[batch for (it, _), batch in first.items() if round_of(it) == k] for k in range(NUM_ROUNDS)]
    last = [[batch for batch, it, _ in all_draws if round_of(it) == k] for k in range(NUM_ROUNDS)]
    of_kind = {kind: [it[1:] for it in events(run) if it[0] == kind] for kind in ("start", "end", "validation")}
    assert of_kind["start"] == [(k, min(begun[k])) for k in range(NUM_ROUNDS)]
    assert [index for index, _ in of_kind["end"]] == list(range(NUM_ROUNDS))
    for k, (_, end) in enumerate(of_kind["end"]):
        needed = begun[k] if draws_per_sample is None else last[k]
        assert max(needed) < end
        assert k + 1 == NUM_ROUNDS or end <= min(begun[k + 1])
    # The model is validated at the end of each round, which comes before the event of the user's.
    assert set(of_kind["end"]) <= set(of_kind["validation"])
    assert all(events(run, rank) == events(run) for rank in range(run.report["ranks"]))
    assert run.report["rounds"] == NUM_ROUNDS


@pytest.mark.parametrize(
    ("policy", "num_ranks"),
    [
        pytest.param("fifo", 1, marks=pytest.mark.full),
        pytest.param("firo", 2, marks=pytest.mark.full),
        ("reservoir", 2),
        pytest.param("reservoir", 1, marks=pytest.mark.full),
    ],
)
def test_no_sample_is_drawn_before_all_of_the_round_before_were(tmp_path: Path, policy: str, num_ranks: int) -> None:
    settings = ROUNDS | POLICIES[policy]
    if num_ranks == 1:
        done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    else:
        done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=settings)
    assert_in_rounds(done, num_ranks, draws_per_sample={"fifo": 1, "firo": 2}.get(policy))


@pytest.mark.parametrize("policy", ["fifo", pytest.param("reservoir", marks=pytest.mark.full)])
def test_rounds_go_on_after_kills_and_on_another_number_of_ranks(tmp_path: Path, policy: str) -> None:
    settings = ROUNDS | POLICIES[policy] | {"checkpoint.every_batches": 3, "checkpoint.every_rounds": 1}
    # Within the second round, and after a checkpoint at its end.
    killed_at("server.trained=kill@14", NUMPY_STUDY, tmp_path / "run", num_ranks=1, mpi=None, settings=settings)
    killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=settings)
    done = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=1, settings=settings)
    assert done.report["restarts"] == 2
    assert_in_rounds(done, 2, draws_per_sample={"fifo": 1}.get(policy))


def test_a_class_is_asked_for_a_round_once_it_knows_of_the_one_before_and_may_have_enough(tmp_path: Path) -> None:
    told = tmp_path / "told"
    sampler = {"class": "learning_sampler.py:InRounds", "args": {"file": str(told), "enough": 2 * OF_ROUND}}
    settings = ROUNDS | {"parameters.sampler": sampler, "training.log_every_batches": 1000}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["samples"]["trained"] == 2 * OF_ROUND * NUM_STEPS
    assert done.report["simulations"]["finished"] == NUM_HELD_OUT + 2 * OF_ROUND
    assert "learning_sampler.py:InRounds has enough" in done.report["message"]
    # The training simulations that had results at each question for more of them.
    assert [json.loads(line) for line in told.read_text().splitlines()] == [[2, []], [2, [1, 2]]]
    assert [it[:2] for it in events(done) if it[0] != "validation"] == [
        ("start", 0), ("end", 0), ("start", 1), ("end", 1)
    ]  # fmt: skip


def test_a_class_knows_the_results_of_the_round_before_also_after_a_restart(tmp_path: Path) -> None:
    told = tmp_path / "told"
    sampler = {"class": "learning_sampler.py:InRounds", "args": {"file": str(told), "enough": 99}}
    settings = ROUNDS | {"parameters.sampler": sampler, "checkpoint.every_rounds": 1}
    # The parameters of the second round were asked for, and are not on disk.
    killed_at("suggester.before_log=kill@1", NUMPY_STUDY, tmp_path / "run", num_ranks=1, mpi=None, settings=settings)
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert_in_rounds(done, 1, draws_per_sample=1)
    of_rounds = [[], [1, 2], [1, 2], [1, 2, 3, 4]]
    assert [json.loads(line) for line in told.read_text().splitlines()] == [[2, known] for known in of_rounds]


@pytest.mark.full
def test_a_finished_study_goes_on_with_more_rounds(tmp_path: Path) -> None:
    two = ROUNDS | {"study.rounds": {"simulations": OF_ROUND, "number": 2}, "study.simulations": 2 * OF_ROUND}
    first = run_here(NUMPY_STUDY, tmp_path / "run", settings=two)
    assert first.report["rounds"] == 2
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=ROUNDS)
    assert_in_rounds(done, 1, draws_per_sample=1)


@pytest.mark.full
def test_simulations_of_a_later_round_wait_when_the_server_falls_back_behind_its_beginning(tmp_path: Path) -> None:
    # The newest checkpoint is of the first round, and those of the second one run on while the server is away.
    settings = ROUNDS | POLICIES["fifo"] | {
        "checkpoint.every_batches": 8,
        "simulation.command": ["python", "paced.py", "0.05"],
    }  # fmt: skip
    with start_study(
        NUMPY_STUDY,
        tmp_path / "run",
        num_ranks=1,
        mpi=None,
        program="stream-launcher",
        settings=settings,
        environment=failpoints(tmp_path / "met", "server.trained=kill@14"),
    ) as live:
        done = live.end(200)
    assert done.report["restarts"] >= 1
    assert_in_rounds(done, 1, draws_per_sample=1)
