"""A study learns what a plain torch loop learns from the same batches in the same order."""

import importlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.study.test_replay import SETTINGS
from tests.support.runs import NUMPY_STUDY, Run, run_study

Weights = dict[str, Tensor]


@pytest.fixture
def make_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(NUMPY_STUDY.parent)
    return importlib.import_module("diary_server").make_model


def union_batches(output_dir: Path, num_ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each step, the samples of all ranks."""
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for rank in range(num_ranks):
        with np.load(output_dir / f"batches-{rank}.npz") as batches:
            for name in batches.files:
                parts[name].append(batches[name])
    steps = sorted({name.partition("-")[0] for name in parts})
    for step in steps:
        inputs, signals = (np.concatenate(parts[f"{step}-{name}"]) for name in ("inputs", "signals"))
        yield torch.from_numpy(inputs), torch.from_numpy(signals)


def plain_loop(make_model: Any, weights: Weights, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Weights, int]:
    """A training loop as anybody would write it."""
    model, optimizer = make_model(weights["0.weight"].shape[1])
    model.load_state_dict(weights)
    num_samples = 0
    for inputs, signals in batches:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), signals)
        loss.backward()
        optimizer.step()
        num_samples += len(inputs)
    return model.state_dict(), num_samples


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(4, marks=pytest.mark.full)]
)
def test_a_replay_learns_what_a_plain_loop_learns(
    recorded: Run, make_model: Any, tmp_path: Path, num_ranks: int
) -> None:
    done = run_study(
        NUMPY_STUDY,
        tmp_path,
        num_ranks=num_ranks,
        settings=SETTINGS
        | {
            "server.class": "diary_server.py:DiaryServer",
            "training.precision": "64-true",
            "training.batch_size": 3,
            "buffer.policy": "firo",
        },
        arguments=["--replay", str(recorded.output_dir)],
    )
    assert done.exit_code == 0, done.output
    before, after = (torch.load(done.output_dir / f"{name}.pt", weights_only=True) for name in ("before", "after"))
    expected, num_samples = plain_loop(make_model, before, union_batches(done.output_dir, num_ranks))
    assert num_samples == done.account["trained"] == 80
    assert not torch.equal(before["0.weight"], after["0.weight"])
    for name, tensor in expected.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-12, atol=1e-14)
