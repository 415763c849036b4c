"""Mistakes in the user's own files end the study at once, on all ranks, with the place and the reason."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.launch import IMPLEMENTATIONS
from tests.support.runs import NUMPY_STUDY, LiveRun, run_here

METHODS = ("prepare_training_attributes", "process_simulation_data", "training_step")

# `make test-all` runs the others.
PRODUCT = [
    pytest.param(method, mpi, id=f"{method}-{mpi}", marks=[] if i and (i + k) % 2 else pytest.mark.full)
    for i, method in enumerate(METHODS)
    for k, mpi in enumerate(IMPLEMENTATIONS)
]


@pytest.mark.parametrize(("method", "mpi"), PRODUCT)
def test_an_error_of_the_users_class_on_one_rank_ends_all_with_its_traceback(
    start: Callable[..., AbstractContextManager[LiveRun]], method: str, mpi: str
) -> None:
    with start(num_ranks=2, mpi=mpi, settings={"user.trouble": method, "user.rank": 1}) as live:
        live.wait_until((live.output_dir / "raised").exists)
        done = live.end()
    assert done.exit_code != 0
    assert f"ArithmeticError: trouble in {method} of rank 1" in done.output
    assert "server.py" in done.output
    assert done.report["exit_code"] == 3
    assert f"trouble in {method} of rank 1" in done.report["message"]
    assert (done.report["balanced"], done.report["unbalanced"]) == (True, [])
    if method == "prepare_training_attributes":
        # Nothing was received yet.
        assert " requested" not in done.output
    else:
        assert done.report["simulations"]["requested"] == 7
        assert done.account["accepted"] == done.account["trained"] + done.account["untrained"] > 0


def test_a_plain_server_whose_losses_are_never_finite_has_failed(tmp_path: Path) -> None:
    settings = {"study.simulations": 1, "user.diverges": True, "training.max_nonfinite": 1000}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert (done.exit_code, done.report["exit_code"]) == (3, 3)
    assert "not one loss that training_step returned is finite" in done.report["message"]
    assert "losses that training_step returned were not finite, the last one too" in done.report["warnings"][-1]


def test_a_study_whose_updates_change_nothing_has_failed_also_when_it_goes_on(tmp_path: Path) -> None:
    settings = {"study.simulations": 1, "server.class": "resting_server.py:RestingServer"}
    for limit in ({"training.max_batches": 1}, {}):
        done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings | limit)
        assert (done.exit_code, done.report["exit_reason"], done.report["balanced"]) == (5, "failed", True)
        assert done.report["message"].startswith("nothing was learned: no parameter changed in ")
        assert "rank 0: 4 of 4 parameters in optimizers did not change" in done.report["warnings"][-1]
    assert done.report["updates"] > 1


def test_mistakes_in_keys_are_reported_together_and_then_those_between_keys(tmp_path: Path) -> None:
    study = tmp_path / "study.json"
    text = """{
        "study": {"simulations": 0, "time_steps": 10, "fields": {"u": [4]}},
        "parameters": {"bounds": {"a": [0, 1]}},
        "simulation": {"command": ["true"]},
        "server": {"class": "server.py:Server"},
        "buffer": {"policy": "reservior", "capacity": 10, "watermark": 20},
        "training": {"batchsize": 2, "batch_size": 2}
    }"""
    study.write_text(text)
    (tmp_path / "server.py").write_text("class Server: ...")
    done = run_here(study, tmp_path / "run")
    assert done.exit_code == 2
    assert "3 problems" in done.output
    assert "study.simulations: 0 is out of range" in done.output
    assert 'Write "reservoir"' in done.output
    assert 'training.batchsize: unknown key. Write "batch_size"' in done.output
    for wrong, right in (('0, "time', '4, "time'), ("reservior", "reservoir"), ('"batchsize": 2, ', "")):
        text = text.replace(wrong, right)
    study.write_text(text)
    done = run_here(study, tmp_path / "run")
    assert done.exit_code == 2
    assert "buffer.capacity: must be at least" in done.output
