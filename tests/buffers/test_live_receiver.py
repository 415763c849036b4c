"""Two threads at full speed on one small buffer: no row may be a mixture of two samples."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event, Thread

import numpy as np
import pytest

from stream_server.buffers import Buffer, Draw, Policy, Slots
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES

NUM_SAMPLES = 4_000
CAPACITY = 48
BATCH = 8
HELD = 2


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Receiver(Thread):
    """Fills rows with the number of their sample, in blocks of changing size, as fast as there is room."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(name="test-receiver")
        self.buffer = buffer
        self.may_go_on = Event()
        buffer.on_room = self.may_go_on.set

    def run(self) -> None:
        try:
            self.fill()
            self.buffer.close()
        except BaseException as error:
            self.buffer.close(error)

    def fill(self) -> None:
        sample = 0
        while sample < NUM_SAMPLES or self.buffer.num_waiting:
            self.may_go_on.clear()
            slots = self.buffer.claim(min(1 + sample % 7, NUM_SAMPLES - sample))
            for slot in slots:
                self.write(slot, sample)
                sample += 1
            self.buffer.commit(slots)
            if not self.buffer.admit() and not slots:
                assert self.may_go_on.wait(10), "no room for 10 s"

    def write(self, slot: int, sample: int) -> None:
        slots = self.buffer.slots
        slots.simulation_ids[slot], slots.time_steps[slot] = divmod(sample, 100)
        slots.arrays["u"][slot, :5_000] = sample
        slots.arrays["u"][slot, 5_000:] = sample
        slots.arrays["v"][slot] = -sample


def assert_whole(buffer: Buffer, draw: Draw) -> list[int]:
    rows = buffer.gather(draw)
    samples = 100 * buffer.slots.simulation_ids[draw.slots] + buffer.slots.time_steps[draw.slots]
    assert (rows["u"] == samples[:, None]).all()
    assert (rows["v"] == -samples[:, None, None]).all()
    return list(samples.tolist())


@pytest.mark.usefixtures("threads_change_often")
@pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)
def test_no_row_is_torn_while_a_receiver_fills_the_buffer(new_policy: Callable[[int, int], Policy]) -> None:
    slots = Slots({"u": (10_000,), "v": (3, 5)}, CAPACITY + BATCH * HELD + 12)
    slots.allocate({"u": np.float32, "v": np.int64})
    buffer = Buffer(new_policy(CAPACITY, 3), slots)
    receiver = Receiver(buffer)
    receiver.start()
    held: deque[Draw] = deque()
    trained: set[int] = set()
    num_first = 0
    try:
        while True:
            try:
                draw = buffer.draw(BATCH, timeout_s=10.0)
            except Closed:
                break
            assert draw is not None, "nothing to draw for 10 s"
            num_first += draw.num_first
            held.append(draw)
            if len(held) > HELD:
                trained.update(assert_whole(buffer, held[0]))
                buffer.release(held.popleft())
                receiver.may_go_on.set()
    except BaseException as error:
        buffer.close(error)
        raise
    finally:
        receiver.join(timeout=20)
    for draw in held:
        trained.update(assert_whole(buffer, draw))
    assert trained == set(range(NUM_SAMPLES))
    assert num_first == NUM_SAMPLES
