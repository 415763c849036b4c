"""What a study will take of each server rank: slots, credit, memory and connections."""

import math
from dataclasses import dataclass

import numpy as np

from stream_server.config import StudyConfig

BYTES_PER_VALUE_UNKNOWN = 8
MIN_CREDIT = 2
HELD_BATCHES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes per server rank.

    `credit` is how many steps one simulation may have unacknowledged at this rank. All of them have a
    place beside a full buffer, so `num_slots` is capacity + credit × simulations at once + held batches.
    """

    capacity: int
    watermark: int
    credit: int
    max_clients: int
    num_slots: int
    sample_bytes: int
    connections: int

    @property
    def buffer_bytes(self) -> int:
        return self.num_slots * self.sample_bytes


def sample_bytes(config: StudyConfig) -> int:
    """Bytes of one sample; a field that keeps what is sent counts 8 bytes per value."""
    total = 0
    for spec in config.study.fields.values():
        itemsize = np.dtype(spec.dtype).itemsize if spec.dtype else BYTES_PER_VALUE_UNKNOWN
        total += math.prod(spec.shape) * itemsize
    return total


def make_plan(config: StudyConfig) -> Plan:
    """Derive the sizes from the study.

    The client's window is an upper limit of what is under way; the windows of all simulations together
    take at most an eighth of the capacity, but never less than two steps each, below which a simulation
    of several ranks could not assemble one step while it sends the next.
    """
    size = sample_bytes(config)
    max_clients = config.client.max_attached
    if config.simulation.command:
        max_clients += config.launcher.max_running
    capacity = config.buffer.capacity
    credit = max(MIN_CREDIT, min(config.client.window // size, capacity // (8 * max_clients)))
    return Plan(
        capacity=capacity,
        watermark=config.buffer.watermark,
        credit=credit,
        max_clients=max_clients,
        num_slots=capacity + credit * max_clients + HELD_BATCHES * config.training.batch_size + 1,
        sample_bytes=size,
        connections=max_clients * config.simulation.ranks + 2,
    )
