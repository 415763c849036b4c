"""Models that torch compiles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def compile_in_place(model: nn.Module) -> None:
    """Compile the forward pass of a model at its first call, unless its maker has done it.

    The names of the model's state stay what they are. `torch.compile` of the model, which is what Fabric does, and
    `model.compile()` quietly leave a model such as nn.Sequential as it is, as torch compiles no function of its own
    unless one of another package calls it (measured with 2.13).
    """
    if not isinstance(model, torch._dynamo.OptimizedModule):
        model.forward = torch.compile(_calling(model.forward))


def _calling(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **named)

    return call
