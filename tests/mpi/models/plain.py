"""One process that trains a case on the batches of several ranks: the loop anybody would write."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.mpi.models.cases import Case, average, halved, made, rows_of

Sizes = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """All numbers of the model, parameters then buffers, and of the average of its weights if there is one."""

    parameters: list[float]
    buffers: list[float]
    averaged: list[float]


def train(
    case: Case,
    steps: Sizes,
    *,
    accumulate: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Trained:
    """Train on `steps`, of which each gives the number of rows of each rank.

    The ranks compute one after the other. Batch statistics are those of a rank's own rows, as everywhere in
    data-parallel training, so each rank has its own module buffers; those of the lowest rank in the last step are the
    model's.
    """
    num_ranks = len(steps[0])
    model = made(case, dtype)
    optimizers = case.optimizers(model)
    schedule = halved(optimizers[0]) if case.scheduled else None
    ema = average(model) if case.averaged else None
    buffers: list[list[Tensor]] = [_buffers(model) for _ in range(num_ranks)]
    rows = iter(rows_of(sum(map(sum, steps))).to(dtype).split([size for sizes in steps for size in sizes]))
    for first in range(0, len(steps), accumulate):
        update = steps[first : first + accumulate]
        num_learned, is_finite = 0, True
        for step, sizes in enumerate(update, first):
            own = [next(rows) for _ in sizes]
            if case.losses:
                for loss, optimizer in zip(case.losses, optimizers, strict=True):
                    optimizer.zero_grad()
                    for part in own:
                        if len(part):
                            (loss(model, part) * len(part) / sum(sizes)).backward()
                    optimizer.step()
            else:
                assert case.loss is not None
                for rank, part in enumerate(own):
                    if len(part):
                        _put(model, buffers[rank])
                        mean = case.loss(model, part)
                        buffers[rank] = _buffers(model)
                        if mean is not None:
                            (mean * len(part)).backward()
                            num_learned += len(part)
                            is_finite &= bool(mean.isfinite())
            if (step == first + accumulate - 1 or step == len(steps) - 1) and not case.losses:
                if num_learned and is_finite:
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter.grad /= num_learned
                    _clip(model, clip_norm, clip_value)
                    optimizers[0].step()
                    if schedule is not None:
                        schedule.step()
                optimizers[0].zero_grad()
            if ema is not None:
                ema.update_parameters(model)
            case.after_step(model, step)
    lowest = next(rank for rank, size in enumerate(steps[-1]) if size)
    _put(model, buffers[lowest])
    return numbers_of(model, ema)


def _clip(model: nn.Module, norm: float | None, value: float | None) -> None:
    if norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), norm)
    if value is not None:
        nn.utils.clip_grad_value_(model.parameters(), value)


def numbers_of(model: nn.Module, ema: nn.Module | None) -> Trained:
    return Trained(
        parameters=_numbers(model.parameters()),
        buffers=_numbers(model.buffers()),
        averaged=[] if ema is None else _numbers(ema.parameters()),
    )


def _numbers(tensors: object) -> list[float]:
    found: list[float] = []
    for tensor in tensors:  # type: ignore[attr-defined]
        values = tensor.detach()
        if isinstance(values, DTensor):
            values = values.full_tensor()
        found += (torch.view_as_real(values) if values.is_complex() else values.double()).flatten().tolist()
    return found


def _buffers(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def _put(model: nn.Module, values: list[Tensor]) -> None:
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)
