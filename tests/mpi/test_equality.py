"""Several ranks train as one rank would on the union of their batches."""

import json
import shutil
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.mpi.running import run

Job = dict[str, Any]

UNEVEN = {2: [[3, 3], [3, 1], [0, 4], [2, 0], [1, 1]], 4: [[2, 2, 2, 2], [2, 1, 2, 2], [0, 0, 3, 0], [0, 4, 0, 1]]}
FULL = {2: [[3, 3], [3, 3], [3, 3], [3, 1]], 4: [[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2], [2, 0, 2, 1]]}
NORM = {2: [[4, 4], [0, 4]], 4: [[2, 2, 2, 2], [0, 4, 0, 0]]}
MPI = {1: "mpich", 2: "openmpi", 4: "mpich"}

SETTINGS: dict[str, Job] = {
    "plain": {},
    "accumulated": {"training": {"accumulate": 2}},
    "clipped by norm": {"training": {"accumulate": 3, "clip_norm": 0.3}},
    "clipped by value": {"training": {"accumulate": 2, "clip_value": 0.02}},
    "scaled": {"scale": 1024.0},
    "scaled and clipped": {"scale": 1024.0, "training": {"accumulate": 2, "clip_norm": 0.3}},
}


def jobs(num_ranks: int) -> dict[str, Job]:
    """The jobs that are run on so many ranks, and on one."""
    full = FULL[num_ranks]
    pairs = [np.add(*full[index : index + 2]).tolist() for index in (0, 2)]
    return {
        **{name: {"steps": UNEVEN[num_ranks], **keys} for name, keys in SETTINGS.items()},
        "two optimizers": {"steps": full[:3], "training": {"uneven": "stop"}, "server": "manual"},
        "two optimizers, scaled": {
            "steps": full[:3],
            "training": {"uneven": "stop"},
            "server": "manual",
            "scale": 8.0,
        },
        "halves": {"steps": full, "training": {"accumulate": 2}},
        "wholes": {"steps": pairs},
        "running statistics": {"steps": NORM[num_ranks], "server": "norm"},
    }


@cache
def results(num_ranks: int, of: tuple[int, ...]) -> list[dict[str, list[Job]]]:
    """The result of each rank at the end of each job; the jobs are those `of` so many ranks, whoever does them."""
    chosen = [jobs(num) for num in of]
    arguments = [json.dumps(job) for its_jobs in chosen for job in its_jobs.values()]
    ran = run("equality", num_ranks, arguments, implementation=MPI[num_ranks], deadline_s=90)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = map(json.loads, ran.stdout.splitlines())
    return [{name: next(lines) for name in its_jobs} for its_jobs in chosen]


def alone(of: int) -> dict[str, list[Job]]:
    """The results of one rank that does the jobs of several."""
    return dict(zip((2, 4), results(1, (2, 4)), strict=True))[of]


def together(num_ranks: int) -> dict[str, list[Job]]:
    return results(num_ranks, (num_ranks,))[0]


def assert_same_weights(found: list[Job], expected: list[Job]) -> None:
    np.testing.assert_allclose(found[0]["weights"], expected[0]["weights"], rtol=1e-12, atol=1e-14)
    assert all(other["weights"] == found[0]["weights"] for other in found)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", [name for name in jobs(2) if name != "running statistics"])
def test_partial_and_missing_batches_give_the_weights_of_one_rank(num_ranks: int, name: str) -> None:
    found, expected = together(num_ranks)[name], alone(num_ranks)[name]
    assert_same_weights(found, expected)
    for rank in found:
        np.testing.assert_allclose(rank["norms"], expected[0]["norms"], rtol=1e-12)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_batches_that_accumulate_are_one_large_batch(num_ranks: int) -> None:
    found = alone(2) if num_ranks == 1 else together(num_ranks)
    assert_same_weights(found["halves"], found["wholes"])
    np.testing.assert_allclose(found["halves"][0]["norms"], found["wholes"][0]["norms"], rtol=1e-12)


@pytest.mark.parametrize(("scaled", "plain"), [("scaled", "plain"), ("two optimizers, scaled", "two optimizers")])
def test_the_scale_of_the_loss_makes_no_difference(scaled: str, plain: str) -> None:
    found = together(2)
    assert_same_weights(found[scaled], found[plain])


def test_every_job_trained_something_else() -> None:
    """Without that, the equalities would say little."""
    found = alone(2)
    different = [*SETTINGS][:4]
    assert len({tuple(found[name][0]["weights"]) for name in different}) == len(different)


def test_the_states_of_all_optimizers_are_saved_and_come_back() -> None:
    found = together(2)
    assert found["two optimizers"][0]["num_optimizers"] == 2
    assert all(rank["comes_back"] for name in found for rank in found[name])


@pytest.mark.parametrize(("name", "expected"), [("plain", 5), ("accumulated", 3), ("clipped by norm", 2)])
def test_gradients_are_reduced_once_per_update(name: str, expected: int) -> None:
    """Five batches, by one, two or three per update; the model fits into one bucket."""
    assert [rank["num_reductions"] for rank in together(2)[name]] == [expected, expected]


def test_module_buffers_come_from_the_lowest_rank_with_data() -> None:
    first, second, *_ = together(2)["running statistics"]
    assert first["own"] != second["own"]
    assert first["shared"] == second["shared"] == second["own"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_a_compiled_model_learns_the_same_and_is_saved_by_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Job = {"steps": [[2, 2], [0, 2], [2, 0], [2, 2]]}
    both = [{**job, "training": {"accumulate": 2, "compile": compiled}} for compiled in (False, True)]
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Without the headers of torch's vectors g++ needs half the time.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # torch warns of its own use of what it has deprecated.
    ran = run("equality", 2, [json.dumps(job) for job in both], deadline_s=240, ignored=["`torch.jit.script"])
    assert ran.returncode == 0, ran.stderr
    plain, compiled = map(json.loads, ran.stdout.splitlines())
    assert [rank["num_graphs"] > 0 for rank in plain + compiled] == [False, False, True, True]
    assert compiled[0]["names"] == plain[0]["names"]
    np.testing.assert_allclose(compiled[0]["weights"], plain[0]["weights"], rtol=1e-10)
    assert compiled[1]["weights"] == compiled[0]["weights"]
