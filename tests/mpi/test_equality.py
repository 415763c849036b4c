"""Several ranks train as one rank would on the union of their batches."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.mpi.equality import train
from tests.mpi.running import run

Job = dict[str, Any]

NUM_RANKS = 3
UNEVEN = [[2, 2, 2], [2, 1, 2], [0, 0, 3], [0, 4, 1], [2, 0, 0]]
FULL = [[2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 0, 1]]
NORM = [[4, 4, 2], [0, 4, 2]]

SETTINGS: dict[str, Job] = {
    "plain": {},
    "accumulated": {"training": {"accumulate": 2}},
    "clipped by norm": {"training": {"accumulate": 3, "clip_norm": 0.3}},
    "clipped by value": {"training": {"accumulate": 2, "clip_value": 0.02}},
    "scaled": {"scale": 1024.0},
    "scaled and clipped": {"scale": 1024.0, "training": {"accumulate": 2, "clip_norm": 0.3}},
}


PAIRS = [np.add(*FULL[index : index + 2]).tolist() for index in (0, 2)]
TWO_OPTIMIZERS: Job = {"steps": FULL[:3], "training": {"uneven": "stop"}, "server": "manual"}
FEW: Job = {"steps": [[2, 2, 2], [0, 2, 1], [2, 0, 0], [2, 2, 2]]}

JOBS: dict[str, Job] = {
    **{name: {"steps": UNEVEN, **keys} for name, keys in SETTINGS.items()},
    "two optimizers": TWO_OPTIMIZERS,
    "two optimizers, scaled": {**TWO_OPTIMIZERS, "scale": 8.0},
    "fused": {"steps": UNEVEN, "server": "fused"},
    "fused, clipped by norm": {"steps": UNEVEN, "server": "fused", "training": {"clip_norm": 0.3}},
    "halves": {"steps": FULL, "training": {"accumulate": 2}},
    "wholes": {"steps": PAIRS},
    **{
        f"clipped by the user{more}": {"steps": UNEVEN, "server": "clipping", "training": {"accumulate": 3}, **keys}
        for more, keys in {"": {}, ", scaled": {"scale": 1024.0}}.items()
    },
    "targets": {"steps": FULL, "server": "target"},
    "running statistics": {"steps": NORM, "server": "norm"},
    "not compiled": {**FEW, "training": {"accumulate": 2}},
    "compiled": {**FEW, "training": {"accumulate": 2, "compile": True}},
}


@cache
def together() -> dict[str, list[Job]]:
    """The result of each rank at the end of each job."""
    arguments = [json.dumps(job) for job in JOBS.values()]
    ran = run("equality", NUM_RANKS, arguments, deadline_s=90)
    assert (ran.returncode, ran.stderr) == (0, "")
    return dict(zip(JOBS, map(json.loads, ran.stdout.splitlines()), strict=True))


@cache
def alone(name: str) -> list[Job]:
    """The result of one rank that does a job of several, in this process."""
    result = train(JOBS[name])
    assert result is not None
    return result


def assert_same_weights(found: list[Job], expected: list[Job]) -> None:
    np.testing.assert_allclose(found[0]["weights"], expected[0]["weights"], rtol=1e-12, atol=1e-14)
    assert all(other["weights"] == found[0]["weights"] for other in found)


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("running statistics", "targets")])
def test_partial_and_missing_batches_give_the_weights_of_one_rank(name: str) -> None:
    found, expected = together()[name], alone(name)
    assert_same_weights(found, expected)
    for rank in found:
        np.testing.assert_allclose(rank["norms"], expected[0]["norms"], rtol=1e-12)


@pytest.mark.parametrize("num_ranks", [1, NUM_RANKS])
def test_batches_that_accumulate_are_one_large_batch(num_ranks: int) -> None:
    halves, wholes = (alone(name) if num_ranks == 1 else together()[name] for name in ("halves", "wholes"))
    assert_same_weights(halves, wholes)
    np.testing.assert_allclose(halves[0]["norms"], wholes[0]["norms"], rtol=1e-12)


@pytest.mark.parametrize(("scaled", "plain"), [("scaled", "plain"), ("two optimizers, scaled", "two optimizers")])
def test_the_scale_of_the_loss_makes_no_difference(scaled: str, plain: str) -> None:
    assert_same_weights(together()[scaled], together()[plain])


@pytest.mark.parametrize("name", ["clipped by the user", "clipped by the user, scaled"])
def test_the_user_sees_the_gradients_of_the_union_batch_on_every_rank_and_clips_them_as_the_study_does(
    name: str,
) -> None:
    found, by_study = together()[name], together()["clipped by norm"]
    assert_same_weights(found, by_study)
    np.testing.assert_allclose(found[0]["norms"], by_study[0]["norms"], rtol=1e-12)
    # Two updates, and two parts of the model with parameters.
    assert len(found[0]["own"]) == 4
    for rank in found:
        np.testing.assert_allclose(rank["own"], alone(name)[0]["own"], rtol=1e-12)


def test_every_job_trained_something_else() -> None:
    """Without that, the equalities would say little."""
    different = [*SETTINGS][:4]
    assert len({tuple(alone(name)[0]["weights"]) for name in different}) == len(different)


def test_the_states_of_all_optimizers_are_saved_and_come_back() -> None:
    found = together()
    assert found["two optimizers"][0]["num_optimizers"] == 2
    assert all(rank["comes_back"] for name in found for rank in found[name])


@pytest.mark.parametrize(("name", "expected"), [("plain", 5), ("accumulated", 3), ("clipped by norm", 2)])
def test_gradients_are_reduced_once_per_update(name: str, expected: int) -> None:
    """Five batches, by one, two or three per update; the model fits into one bucket."""
    assert [rank["num_reductions"] for rank in together()[name]] == [expected] * NUM_RANKS


def test_module_buffers_come_from_the_lowest_rank_with_data() -> None:
    first, second, third = together()["running statistics"]
    assert first["own"] != second["own"] != third["own"]
    assert first["shared"] == second["shared"] == third["shared"] == second["own"]


def test_what_a_server_learns_beside_its_model_on_each_rank_for_itself_is_told() -> None:
    said = [
        "0.weight of the model has a hook",
        "order of the model is not the same on all 3 ranks",
        "points of the model is not the same on all 3 ranks",
        "targets.1.bias, state_dict()['mean'] of TargetNet are not the same on all 3 ranks",
    ]
    told = together()["targets"][0]["warnings"]
    assert [text[: len(start)] for text, start in zip(told, said, strict=True)] == said
    assert [rank["warnings"] for name in JOBS if name != "targets" for rank in together()[name]] == [[]] * (
        NUM_RANKS * (len(JOBS) - 1)
    )
    assert not alone("targets")[0]["warnings"]


def test_a_compiled_model_learns_the_same_and_is_saved_by_the_same_names() -> None:
    plain, compiled = (together()[name] for name in ("not compiled", "compiled"))
    assert [rank["num_graphs"] > 0 for rank in plain + compiled] == [False] * NUM_RANKS + [True] * NUM_RANKS
    assert compiled[0]["names"] == plain[0]["names"]
    np.testing.assert_allclose(compiled[0]["weights"], plain[0]["weights"], rtol=1e-10)
    assert all(rank["weights"] == compiled[0]["weights"] for rank in compiled)
