"""What user code logs of a whole run, beside what the samples of the study are."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.numpy_study.ripple import NUM_STEPS, signal_at
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

SETTINGS: dict[str, Any] = {
    "server.class": "logging_server.py:LoggingServer",
    "study.simulations": 3,
    "checkpoint.every_batches": 2,
    "training.log_every_batches": 3,
    "metrics.writers": ["logging_server.py:Told"],
}


def signals_of(run: Run) -> Any:
    """The values of all samples that were trained."""
    with (run.output_dir / "parameters.csv").open() as file:
        rows = [{name: float(row[name]) for name in ("offset", "slope")} for row in list(csv.DictReader(file))[1:]]
    assert len(rows) == 3
    return np.array([signal_at(step, row) for row in rows for step in range(NUM_STEPS)])


def test_what_is_kept_is_of_each_trained_sample_once_through_a_kill_and_on_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, tmp_path / "run", num_ranks=2, settings=SETTINGS)
    done = run_study(NUMPY_STUDY, tmp_path / "run", settings=SETTINGS)
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 1
    metrics = done.output_dir / "metrics"
    lines = [json.loads(line) for line in (metrics / "metrics.jsonl").read_text().splitlines()]
    last: dict[str, float] = {name: value for line in lines for name, value in line.items()}
    signals = signals_of(done)
    for name in ("sum", "max", "min", "mean"):
        assert last[f"signal/{name}"] == pytest.approx(getattr(np, name)(signals), rel=1e-5), name
    assert last["model/inputs"] == done.account["trained"] == len(signals)
    assert last["updates"] == pytest.approx(done.report["updates"])
    assert 0 < last["grad/used"] <= 0.1 * (1 + 1e-5)
    # All batches but the last one have the same size, so that the mean over samples is that over batches.
    trained = [line for line in lines if "train/error" in line][:-1]
    assert len(trained) >= 2
    for line in trained:
        assert line["train/error"] == pytest.approx(line["train/loss"], rel=1e-4)
    assert last["init/total_s"] >= last["init/model_s"] > 0
    # A server that is killed tells nobody.
    assert (metrics / "ends").read_text().splitlines() == ["finished: "]
