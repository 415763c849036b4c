"""One constructor for each kind of policy, for tests that hold for all."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_server.buffers import Fifo, Firo, Policy, Reservoir, UniformReservoir, policy_class
from tests.extending.examples import write_examples

with tempfile.TemporaryDirectory() as folder:
    # The example of docs/guide/extending.md.
    Recent: Any = policy_class("recent.py:Recent", write_examples(Path(folder)))

POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "fifo": lambda capacity, seed: Fifo(capacity=capacity),
    "firo": lambda capacity, seed: Firo(capacity=capacity, watermark=1, seed=(seed, 0)),
    "firo-3-incarnations": lambda capacity, seed: Firo(capacity=capacity, watermark=1, pseudo_epochs=3, seed=(seed, 0)),
    "reservoir": lambda capacity, seed: Reservoir(capacity=capacity, watermark=1, seed=(seed, 0)),
    "reservoir-bounded": lambda capacity, seed: Reservoir(
        capacity=capacity, watermark=1, draws_per_sample=2.5, seed=(seed, 0)
    ),
    "uniform": lambda capacity, seed: UniformReservoir(capacity=capacity, watermark=1, seed=(seed, 0)),
    "uniform-bounded": lambda capacity, seed: UniformReservoir(
        capacity=capacity, watermark=1, draws_per_sample=2.5, seed=(seed, 0)
    ),
    "recent": lambda capacity, seed: Recent(capacity=capacity, watermark=1, seed=(seed, 0)),
}
