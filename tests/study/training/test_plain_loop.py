"""A study trains what study.json names, and learns what a plain torch loop learns from the same batches."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import numpy as numpy_files
from torch import Tensor, nn
from torch.nn import functional

from tests.study.restarts.test_replay import SETTINGS
from tests.support.runs import NUMPY_STUDY, Run, run_study

Weights = dict[str, Tensor]

WIDTH = 5
MAX_RATE = 0.02
NAMED: dict[str, Any] = {
    "server.class": "networks.py:FittingServer",
    "training.model": {"class": "networks.py:Network", "args": {"width": WIDTH}},
    "training.optimizer": {"class": "torch.optim:SGD", "args": {"momentum": 0.9}},
    "training.optimizer.args.lr": 1e-3,
    "training.lr_scheduler": {
        "class": "torch.optim.lr_scheduler:OneCycleLR",
        "args": {"max_lr": MAX_RATE, "total_steps": "{expected_lr_steps}"},
    },
    "training.callbacks": [{"class": "networks.py:Diary", "args": {"name": "diary"}}],
    "training.precision": "64-true",
    "training.batch_size": 3,
    # Formed ahead of the steps, which must change nothing.
    "training.prefetch": 2,
    "buffer.policy": "firo",
}


@pytest.fixture(scope="module", params=[2, *(pytest.param(num, marks=pytest.mark.full) for num in (1, 4))])
def trained(request: pytest.FixtureRequest, recorded: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study of 80 samples, on each number of ranks."""
    return run_study(
        NUMPY_STUDY,
        tmp_path_factory.mktemp("trained") / "run",
        num_ranks=request.param,
        settings=SETTINGS | NAMED,
        arguments=["--replay", str(recorded.output_dir)],
    )


def diaries(run: Run) -> list[Any]:
    return [np.loadtxt(run.output_dir / f"diary-{rank}.txt") for rank in range(run.report["ranks"])]


def union_batches(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of all ranks of each step, in the order of the steps."""
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for rank in range(run.report["ranks"]):
        with np.load(run.output_dir / f"batches-{rank}.npz") as batches:
            for name in batches.files:
                parts[name].append(batches[name])
    steps = sorted({name.partition("-")[0] for name in parts})
    for step in steps:
        inputs, signals = (np.concatenate(parts[f"{step}-{name}"]) for name in ("inputs", "signals"))
        yield torch.from_numpy(inputs), torch.from_numpy(signals)


def plain_loop(
    weights: Weights, batches: Iterator[tuple[Tensor, Tensor]], num_steps: int
) -> tuple[Weights, list[float], int]:
    """A training loop as anybody would write it: the weights, the learning rate of each step, and the samples."""
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8)).double()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=MAX_RATE, total_steps=num_steps)
    rates, num_samples = [], 0
    for inputs, signals in batches:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), signals)
        loss.backward()
        optimizer.step()
        if len(rates) < num_steps:
            scheduler.step()
        num_samples += len(inputs)
    return model.state_dict(), rates, num_samples


@pytest.mark.full
def test_a_replay_learns_what_a_plain_loop_learns(trained: Run) -> None:
    assert trained.exit_code == 0, trained.output
    before, after = (torch.load(trained.output_dir / f"{name}.pt", weights_only=True) for name in ("before", "after"))
    _, num_lr_steps, *rates = diaries(trained)[0]
    expected, expected_rates, num_samples = plain_loop(before, union_batches(trained), int(num_lr_steps))
    assert num_samples == trained.account["trained"] == 80
    assert not torch.equal(before["0.weight"], after["0.weight"])
    for name, tensor in expected.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(rates, expected_rates, rtol=1e-12)


@pytest.mark.full
def test_a_study_trains_what_study_json_names_on_all_ranks(trained: Run) -> None:
    model = numpy_files.load_file(trained.output_dir / "model" / "model.safetensors")
    assert {name: values.shape for name, values in model.items()} == {
        "0.weight": (WIDTH, 3),
        "0.bias": (WIDTH,),
        "2.weight": (8, WIDTH),
        "2.bias": (8,),
    }
    first, *others = diaries(trained)
    for other in others:
        np.testing.assert_array_equal(first, other)
    # First of all, each rank of this node has set up its environment.
    for rank in range(trained.report["ranks"]):
        told = (trained.output_dir / f"environment-{rank}.txt").read_text()
        assert told == f"rank {rank} of the study, {rank} of its node, on ripple"
    num_steps, expected_lr_steps, *rates = first
    # Batches of 3 samples on each rank.
    assert expected_lr_steps == -(-80 // (3 * trained.report["ranks"]))
    assert num_steps == len(rates) >= expected_lr_steps
    assert rates[0] == pytest.approx(MAX_RATE / 25)
    assert max(rates) == pytest.approx(MAX_RATE, rel=0.03)
