"""Ranks that share out a model train it to what a plain loop makes of it, which has the whole of it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.mpi.models.cases import CASES
from tests.mpi.models.plain import train
from tests.mpi.models.ranks import DTYPES, Job
from tests.mpi.models.test_models import on_ranks

# A rank has no batch at first, the others none later; the last step is of one sample.
STEPS = {
    1: [[4], [1], [3], [2], [4], [2]],
    2: [[3, 0], [4, 2], [0, 3], [2, 1], [4, 0], [0, 2], [1, 0]],
    3: [[0, 2, 4], [2, 2, 0], [0, 0, 3], [4, 3, 1], [0, 1, 0], [3, 2, 2], [2, 0, 0]],
    4: [[2, 0, 3, 1], [0, 0, 0, 3], [3, 4, 1, 2], [0, 1, 0, 0], [2, 2, 4, 0], [0, 0, 2, 0]],
}
FULL = {num: [[2] * num, [3] * num, [1] * num, [2] * (num - 1) + [1]] for num in STEPS}

PLAIN: Job = {}
SETTINGS: dict[str, Job] = {
    "accumulated": {"training": {"accumulate": 2}},
    "clipped by norm": {"training": {"accumulate": 3, "clip_norm": 0.2}},
    "clipped by value": {"training": {"accumulate": 2, "clip_value": 0.02}},
    "scaled": {"scale": 1024.0},
    "scaled and clipped": {"scale": 1024.0, "training": {"accumulate": 2, "clip_norm": 0.2}},
    "all ranks with a batch": {"steps": FULL, "training": {"uneven": "stop"}},
    "in float32": {"training": {"precision": "32-true"}},
}
REFUSED = {"adversaries": "automatic_optimization = False", "lazy layers": "lazy"}
MODELS = [name for name in CASES if name not in REFUSED]
# The units are the children of the model, those of a class, or parts of a size.
WRAPPED: dict[str, Job] = {
    "by class": {"blocks": ["TransformerEncoderLayer", "Linear"]},
    "by size": {"min_parameters": 40},
    "all in one": {"min_parameters": 10**9},
}
JOBS: dict[str, Job] = {
    **{name: {"case": name} for name in MODELS},
    **{f"{name}, {how}": {"case": name, **job} for how, job in SETTINGS.items() for name in ("perceptron", "u-net")},
    "skipped batches, accumulated": {"case": "skipped batches", "training": {"accumulate": 2}},
    "losses that are not finite, accumulated": {
        "case": "losses that are not finite",
        "training": {"accumulate": 2, "clip_norm": 0.2},
    },
    **{f"transformer, {how}": {"case": "transformer", "sharding": words} for how, words in WRAPPED.items()},
}
COVER = [
    "perceptron",
    "u-net",
    "transformer",
    "graph network",
    "mixture of experts",
    "frozen backbone with adapters",
    "tied weights",
    "recomputed layers",
    "averaged weights",
    "skipped batches",
    "losses that are not finite",
    "u-net, clipped by norm",
    "perceptron, scaled and clipped",
    "perceptron, in float32",
    "transformer, by class",
]
LAYOUTS = ((1, "mpich"), (2, "mpich"), (2, "openmpi"), (3, "mpich"), (4, "openmpi"))
# What `make test` runs is one job of three ranks.
PRODUCT = [pytest.param(name, 3, "mpich", True, id=name) for name in COVER] + [
    pytest.param(name, num, mpi, False, id=f"{name}, {num} ranks, {mpi}", marks=pytest.mark.full)
    for num, mpi in LAYOUTS
    for name in JOBS
]
Found = dict[str, list[dict[str, Any]]]


def as_job(job: Job, num_ranks: int) -> Job:
    training = {**job.get("training", {}), "sharding": {"kind": "full", **job.get("sharding", {})}}
    return {**job, "training": training, "steps": job.get("steps", STEPS)[num_ranks]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Found]:
    """`trained(num_ranks, mpi, is_cover)`: what each rank has at the end, by job."""

    @cache
    def trained(num_ranks: int, mpi: str, is_cover: bool) -> Found:
        jobs = {name: JOBS[name] for name in (COVER if is_cover else JOBS)}
        jobs |= {name: {"case": name, "is_refused": True} for name in REFUSED}
        argument = [as_job(job, num_ranks) for job in jobs.values()]
        return dict(zip(jobs, on_ranks(argument, num_ranks, mpi, tmp_path_factory.mktemp("trained")), strict=True))

    return trained


@pytest.mark.parametrize(("name", "num_ranks", "mpi", "is_cover"), PRODUCT)
def test_a_model_that_ranks_share_out_learns_what_it_learns_in_a_plain_loop(
    trained: Callable[..., Found], name: str, num_ranks: int, mpi: str, is_cover: bool
) -> None:
    ranks, job = trained(num_ranks, mpi, is_cover)[name], as_job(JOBS[name], num_ranks)
    words = {key: job["training"][key] for key in ("accumulate", "clip_norm", "clip_value") if key in job["training"]}
    precision = job["training"].get("precision", "64-true")
    expected = asdict(train(CASES[job["case"]], job["steps"], **words, dtype=DTYPES[precision]))
    tolerance = 1e-10 if precision == "64-true" else 1e-6
    assert all(rank == ranks[0] for rank in ranks)
    assert any(ranks[0]["sharded"])
    for part, numbers in expected.items():
        np.testing.assert_allclose(ranks[0][part], numbers, rtol=tolerance, atol=tolerance, err_msg=part)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_shared_out_is_refused_by_name(trained: Callable[..., Found], name: str) -> None:
    for rank in trained(3, "mpich", True)[name]:
        assert REFUSED[name] in rank["error"]


def test_every_setting_trains_something_else() -> None:
    """Without that, the equalities would say little."""
    plain = [asdict(train(CASES["perceptron"], STEPS[3], **(job.get("training", {})))) for job in CLIPPED]
    assert len({json.dumps(found) for found in plain}) == len(CLIPPED)


CLIPPED = [{}, *(SETTINGS[name] for name in ("accumulated", "clipped by norm", "clipped by value"))]
