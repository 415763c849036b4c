"""Schedules of the learning rate in whole studies."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stream_server.config import load
from stream_server.server.commands.evaluate import evaluate
from stream_server.storage.plain_state import read_state
from tests.study.conftest import TORCH
from tests.support.killing import checkpoints
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here

# Of 80 samples on two ranks with batches of four; the rest is one cycle of torch.
NUM_STEPS = 10


@pytest.fixture
def study_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the study is on the import path within a test alone."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def one_cycle() -> list[float]:
    """The rates of an undisturbed schedule."""
    import torch

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=NUM_STEPS)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(NUM_STEPS):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def logged_rates(run: Run) -> list[float]:
    lines = (run.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [record["lr"] for line in lines if "lr" in (record := json.loads(line))]


def test_a_schedule_ends_at_its_last_rate_after_a_restart_on_fewer_ranks(torch_restarted: Run) -> None:
    assert_complete(torch_restarted, num_simulations=4)
    assert torch_restarted.report["restarts"] == 1
    assert torch_restarted.report["updates"] > NUM_STEPS
    state = read_state(
        torch_restarted.output_dir / "checkpoints" / checkpoints(torch_restarted.output_dir)[-1] / "model/model.state"
    )
    expected, [scheduler], [optimizer] = one_cycle(), state["schedulers"], state["optimizers"]
    assert (scheduler["total_steps"], scheduler["last_epoch"]) == (NUM_STEPS, NUM_STEPS)
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(expected[-1])
    assert logged_rates(torch_restarted)[-1] == pytest.approx(expected[-2])


@pytest.mark.parametrize("name", ["OneCycleServer", "DocumentedServer"])
def test_a_model_whose_schedule_asks_for_its_length_can_be_evaluated(
    name: str, torch_restarted: Run, study_on_path: None, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        **TORCH,
        "study.output_dir": str(torch_restarted.output_dir),
        "server.class": f"scheduled_server.py:{name}",
    }
    config = load(NUMPY_STUDY, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    assert evaluate(config, torch_restarted.output_dir) == 0
    assert f"{torch_restarted.report['validation'][-1]['loss']:.6g}" in capsys.readouterr().out


def test_a_simulation_that_is_given_up_shortens_the_run_while_it_goes_on(tmp_path: Path) -> None:
    """The first one to be trained crashes after ten steps; the end would be at 70 of 80 samples otherwise."""
    settings: dict[str, Any] = {
        "study.simulations": 4,
        "server.class": "measuring_server.py:MeasuringServer",
        "launcher.max_running": 1,
        "simulation.command": ["python", "troubled.py", "crash", "1"],
        "simulation.retries": 0,
    }
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.account["trained"] < done.account["expected"] == 80
    fractions = [json.loads(line)["fraction"] for line in (done.output_dir / "progress.jsonl").read_text().splitlines()]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
