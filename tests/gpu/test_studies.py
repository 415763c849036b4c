"""Whole studies on a GPU: of one rank, and of two that share it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.study.training.test_rollouts import OPERATOR_STUDY
from tests.support.runs import Run, run_study

SETTINGS: dict[str, Any] = {"training.prefetch": 1, "training.log_every_batches": 1, "checkpoint.every_batches": 5}


HEAT_STUDY = Path(__file__).parents[2] / "configs" / "heat" / "study.json"
FEW: dict[str, Any] = {"study.simulations": 4, "training.draws_per_sample": 4, "validation.simulations": 1}


def study(path: Path, output_dir: Path, num_ranks: int, settings: dict[str, Any]) -> Run:
    return run_study(path, output_dir, num_ranks=num_ranks, mpi="mpich", settings=SETTINGS | settings, limit_s=150)


def metrics_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.output_dir / "metrics" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_study_trains_validates_and_forecasts_on_a_gpu_that_its_ranks_share(num_ranks: int, tmp_path: Path) -> None:
    run = study(OPERATOR_STUDY, tmp_path / "run", num_ranks, {})
    assert run.exit_code == 0, run.output
    assert run.report["exit_reason"] == "finished"
    assert run.report["balanced"] is True
    assert "u" in run.report["rollout"]["mse"]
    assert run.report["memory_bytes"]["device_peak"] > 0
    lines = metrics_of(run)
    assert any(line.get("memory/device_peak_bytes", 0) > 0 for line in lines)
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < losses[0]
    [model] = run.output_dir.glob("**/model.safetensors")
    assert all(tensor.device.type == "cpu" and tensor.isfinite().all() for tensor in load_file(model).values())


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_study_trains_in_low_precision(precision: str, tmp_path: Path) -> None:
    run = study(HEAT_STUDY, tmp_path / "run", 1, FEW | {"training.precision": precision})
    assert run.exit_code == 0, run.output
    assert run.report["exit_reason"] == "finished"
