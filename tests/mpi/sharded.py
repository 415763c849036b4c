"""Run under MPI: trains sharded models that are called in unusual ways, then lets rank 1 fail.

The argument is the JSON file to write: by case what rank 0 has at the end; under "penalised" and the names of `FAILING`
and `DISAGREEING` what each rank raised; and under "under way" how many reductions a rank had not waited for after a
step.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from stream_server.errors import StreamServerError
from stream_server.server.training.torch import turns
from tests.mpi.models.cases import CASES, Case, adam, mlp
from tests.mpi.models.ranks import RANKS, UNION_MEAN, Job, train

STEPS = [[3, 4], [4, 2], [0, 3], [2, 1], [4, 0], [1, 3]]
TRAINING: dict[str, Any] = {"sharding": {"kind": "full"}, "clip_norm": 0.5}


class Halves(nn.Module):
    """A method beside the forward pass uses a part, and a parameter that is in none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 5), nn.Linear(5, 8)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def decode(self, code: Tensor) -> Tensor:
        return self.decoder(torch.relu(code)) * self.scale


def by_method(model: Any, rows: Tensor) -> Tensor:
    return functional.mse_loss(model.decode(model.encoder(rows[:, :8])), rows[:, 8:16])


def with_derivative(model: Any, rows: Tensor) -> Tensor:
    """The residual of a differential equation."""
    x = rows[:, :8].clone().requires_grad_()
    y = model(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return functional.mse_loss(y, rows[:, 8:16]) + (slope**2).mean()


def pushed_forward(model: Any, rows: Tensor) -> Tensor:
    """As many applications of the model as there are rows, the first one without a gradient."""
    state = model(rows[:, :8]).detach()
    for _ in rows:
        state = model(state)
    return functional.mse_loss(state, rows[:, 8:16])


CALLED: dict[str, Case] = {
    "a method": Case(make=Halves, loss=by_method),
    "a derivative within the loss": Case(make=mlp, loss=with_derivative, optimizers=adam),
    "several calls, not as many on all ranks": Case(make=mlp, loss=pushed_forward),
}


def penalised(model: Any, rows: Tensor) -> Tensor:
    penalty = sum((each**2).sum().full_tensor() for each in model.parameters())
    return functional.mse_loss(model(rows[:, :8]), rows[:, 8:16]) + penalty


def failing(model: Any, rows: Tensor) -> Tensor:
    if RANKS.rank == 1:
        raise ValueError("this rank alone")
    return functional.mse_loss(model(rows[:, :8]), rows[:, 8:16])


def failing_later(model: Any, rows: Tensor) -> Tensor:
    """Raise an error on one rank between two units of a step that follows a script."""
    first, *others = model
    code = first(rows[:, :8])
    if RANKS.rank == 1 and len(rows) == 1:
        raise ValueError("this rank alone")
    for each in others:
        code = each(code)
    return functional.mse_loss(code, rows[:, 8:16])


def with_means(model: Any, rows: Tensor, *means: Any) -> Tensor:
    """The mean of each of these over the ranks within a pass."""
    code = model[0](rows[:, :8])
    for each in means:
        UNION_MEAN.mean(each)
    return functional.mse_loss(model[1:](code), rows[:, 8:16])


def of_shapes(model: Any, rows: Tensor) -> Tensor:
    return with_means(model, rows, torch.zeros(2 + RANKS.rank))


def of_types(model: Any, rows: Tensor) -> Tensor:
    return with_means(model, rows, np.zeros(2, [np.float64, np.float32][RANKS.rank]))


def of_numbers(model: Any, rows: Tensor) -> Tensor:
    return with_means(model, rows, *[np.zeros(2)] * (2 - RANKS.rank))


def failing_between(model: Any, rows: Tensor) -> Tensor:
    UNION_MEAN.mean(np.zeros(2))
    return with_means(failing(model, rows) and model, rows, np.zeros(2))


def job(name: str) -> Job:
    return {"case": name, "steps": STEPS, "training": TRAINING}


def failure(name: str) -> str:
    try:
        train(job(name))
    except StreamServerError as error:
        dist.destroy_process_group()
        return f"{type(error).__name__}: {error}"
    return "nothing"


FAILING = {"failing": failing, "failing later": failing_later, "failing between means": failing_between}
DISAGREEING = {"shapes": of_shapes, "types": of_types, "numbers": of_numbers}
UNDER_WAY: list[int] = []


def count_reductions(model: Any, step: int) -> None:
    streams = model._get_fsdp_state()._comm_ctx
    UNDER_WAY.append(len(streams._last_post_reduce_events) + len(streams.reduce_scatter_states))


if __name__ == "__main__":
    turns.EQUAL_PASSES = 1
    losses = {"penalised": penalised, **FAILING, **DISAGREEING}
    CASES.update(CALLED, **{name: Case(make=mlp, loss=loss) for name, loss in losses.items()})
    CASES["watched"] = Case(make=mlp, loss=pushed_forward, after_step=count_reductions)
    found: dict[str, Any] = {name: RANKS.gather(train(job(name))) for name in CALLED}
    train(job("watched"))
    found["under way"] = RANKS.gather(max(UNDER_WAY))
    found |= {name: RANKS.gather(failure(name)) for name in losses}
    if RANKS.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
