"""Sharded models whose methods and derivatives are called, differently on each rank, train what a plain loop trains."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tests.mpi.models.plain import train
from tests.mpi.running import run
from tests.mpi.sharded import CALLED, DISAGREEING, FAILING, STEPS


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


@pytest.mark.parametrize("name", FAILING)
def test_ranks_that_wait_for_one_that_raises_an_error_leave_at_once(found: Any, name: str) -> None:
    assert [told.partition(":")[0] for told in found[name]] == ["PeerFailed", "UserCodeError"]


@pytest.mark.parametrize("name", DISAGREEING)
def test_ranks_that_ask_for_different_means_within_a_sharded_pass_raise_the_same_error(found: Any, name: str) -> None:
    first, second = found[name]
    assert first == second
    assert first.startswith("UserCodeError: ")
    assert "but rank 0 made an all_reduce of arrays of shapes [[2]] as float64 where rank 1 made " in first


def test_after_a_step_every_rank_has_waited_for_the_gradients_that_it_added_up_for_others(found: Any) -> None:
    assert found["under way"] == [0, 0]


def test_a_penalty_on_the_weights_of_which_a_rank_would_have_its_own_part_is_refused(found: Any) -> None:
    assert all("parameters outside of the model's forward pass" in told for told in found["penalised"])
