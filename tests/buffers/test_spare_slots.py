"""All windows find a slot, however slowly a frozen buffer is written and whatever is withdrawn meanwhile."""

import random
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from stream_server.buffers import Buffer, Draw, Frozen, Policy, Slots, num_slots_to_load
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

CAPACITY = 8
WINDOW = 4
BATCH = 2
HELD = 2
NUM_SIMULATIONS = 3


class Study:
    """Simulations that always fill their windows, a trainer that always draws, a writer that is slow."""

    def __init__(self, new_policy: Callable[[int, int], Policy], seed: int, spare: int) -> None:
        self.random = random.Random(seed)
        self.new_policy = new_policy
        self.spare = spare
        self.planned = CAPACITY + WINDOW + spare + HELD * BATCH
        self.buffer = self.new_buffer(CAPACITY, self.planned)
        self.held: deque[Draw] = deque()
        self.frozen: Frozen | None = None
        self.num_written = 0
        self.num_samples = 0

    def new_buffer(self, capacity: int, num_slots: int) -> Buffer:
        slots = Slots({"u": ()}, num_slots)
        slots.allocate({"u": np.int64})
        return Buffer(self.new_policy(capacity, self.random.randrange(100)), slots, spare=self.spare)

    def receive(self) -> None:
        num = WINDOW - self.buffer.num_waiting
        slots = self.buffer.claim(num)
        assert len(slots) == max(0, num), "a step within its credit has no slot"
        for slot in slots:
            self.buffer.slots.simulation_ids[slot] = self.num_samples % NUM_SIMULATIONS
            self.num_samples += 1
        self.buffer.enqueue(slots)

    def train(self) -> None:
        draw = self.buffer.draw(BATCH, 0.0)
        if draw is not None:
            self.held.append(draw)
        if self.held and (draw is None or len(self.held) == HELD):
            self.buffer.release(self.held.popleft())

    def save(self) -> None:
        if self.frozen is None:
            self.frozen, self.num_written = self.buffer.freeze(), 0
        if self.num_written < len(self.frozen):
            self.buffer.thaw(self.frozen, self.num_written, self.num_written + 1)
            self.num_written += 1
        if self.num_written == len(self.frozen) or self.random.random() < 0.05:
            self.buffer.thaw_all(self.frozen)
            self.frozen = None

    def restart(self, capacity: int) -> None:
        self.frozen = None
        state, fields = save(self.buffer)
        planned = self.planned - CAPACITY + capacity
        self.buffer = self.new_buffer(capacity, num_slots_to_load(state, capacity=capacity, planned=planned))
        load(self.buffer, state, fields)
        self.held.clear()
        while (draw := self.buffer.take_restored()) is not None:
            self.held.append(draw)

    def move(self) -> None:
        self.receive()
        for _ in range(self.random.randrange(4)):
            self.train()
            self.buffer.admit()
        if self.random.random() < 0.3:
            self.save()
        if self.random.random() < 0.1:
            self.buffer.withdraw(self.random.randrange(NUM_SIMULATIONS))


for_all_policies = pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)


@for_all_policies
@pytest.mark.parametrize("spare", [WINDOW, 2 * WINDOW])
def test_all_windows_find_a_slot_while_a_frozen_buffer_is_written(
    new_policy: Callable[[int, int], Policy], spare: int
) -> None:
    for seed in range(examples(20)):
        study = Study(new_policy, seed, spare)
        for _ in range(150):
            study.move()


@for_all_policies
def test_all_windows_find_a_slot_after_restarts_with_other_capacities(
    new_policy: Callable[[int, int], Policy],
) -> None:
    for seed in range(examples(20)):
        study = Study(new_policy, seed, WINDOW)
        for _ in range(8):
            study.restart(study.random.randrange(3, 3 * CAPACITY))
            for _ in range(20):
                study.move()
