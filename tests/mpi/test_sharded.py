"""Sharded models whose methods and derivatives are called, differently on each rank, train what a plain loop trains."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tests.mpi.models.plain import train
from tests.mpi.running import run
from tests.mpi.sharded import CALLED, STEPS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("sharded") / "found.json"
    ran = run("sharded", 2, [str(file)])
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", CALLED)
def test_a_sharded_model_may_be_called_in_any_way(found: Any, name: str) -> None:
    first, second = found[name]
    assert first == second
    for part, numbers in asdict(train(CALLED[name], STEPS, clip_norm=0.5)).items():
        np.testing.assert_allclose(first[part], numbers, rtol=1e-10, atol=1e-12, err_msg=part)


@pytest.mark.parametrize("name", ["failing", "failing later"])
def test_ranks_that_wait_for_one_that_raises_an_error_leave_at_once(found: Any, name: str) -> None:
    assert [told.partition(":")[0] for told in found[name]] == ["PeerFailed", "UserCodeError"]


def test_a_penalty_on_the_weights_of_which_a_rank_would_have_its_own_part_is_refused(found: Any) -> None:
    assert all("parameters outside of the model's forward pass" in told for told in found["penalised"])
