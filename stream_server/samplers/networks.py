"""Small networks of samplers that learn: several at once, with random numbers of their own."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

WIDTH = 64


class Networks:
    """`num` independent perceptrons with two hidden layers, computed together.

    Calling them with an array of shape (num, n, num_inputs) gives one of shape (num, n, num_outputs).
    """

    def __init__(self, num: int, num_inputs: int, num_outputs: int, random: torch.Generator, *, lr: float) -> None:
        sizes = [(num_inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, num_outputs)]
        self._weights = [(torch.randn(num, a, b, generator=random) / math.sqrt(a)).requires_grad_() for a, b in sizes]
        self._biases = [torch.zeros(num, 1, b, requires_grad=True) for _, b in sizes]
        self._optimizer = torch.optim.Adam([*self._weights, *self._biases], lr=lr)

    def __call__(self, inputs: Tensor) -> Tensor:
        values = inputs
        for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            if layer < len(self._weights) - 1:
                values = torch.nn.functional.silu(values)
        return values

    def descend(self, loss: Callable[[], Tensor], num_steps: int, until: float) -> None:
        """Take steps of Adam, fewer if time.monotonic comes to `until` before."""
        for _ in range(num_steps):
            if time.monotonic() >= until:
                return
            self._optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
