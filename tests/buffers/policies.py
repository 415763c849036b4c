"""One constructor for each kind of policy, for tests that hold for all."""

from collections.abc import Callable

from stream_server.buffers import Fifo, Firo, Policy, Reservoir

POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "fifo": lambda capacity, seed: Fifo(capacity=capacity),
    "firo": lambda capacity, seed: Firo(capacity=capacity, watermark=1, seed=(seed, 0)),
    "firo-3-epochs": lambda capacity, seed: Firo(capacity=capacity, watermark=1, pseudo_epochs=3, seed=(seed, 0)),
    "reservoir": lambda capacity, seed: Reservoir(capacity=capacity, watermark=1, seed=(seed, 0)),
    "reservoir-bounded": lambda capacity, seed: Reservoir(
        capacity=capacity, watermark=1, draws_per_sample=2.5, seed=(seed, 0)
    ),
}
