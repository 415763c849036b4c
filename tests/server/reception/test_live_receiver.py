"""Threads at full speed on one small buffer: no row may be a mixture of two samples."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np
import pytest

from stream_server.buffers import Buffer, Draw, Frozen, Policy, Slots
from stream_server.errors import Closed
from tests.buffers.policies import POLICIES
from tests.support.buffer_saving import chunks

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
            self.buffer.enqueue(slots)
            if not self.buffer.admit() and not slots:
                assert self.may_go_on.wait(100), "no room for 100 s"

    def write(self, slot: int, sample: int) -> None:
        slots = self.buffer.slots
        slots.simulation_ids[slot], slots.time_steps[slot] = divmod(sample, 100)
        slots.arrays["u"][slot, :5_000] = sample
        slots.arrays["u"][slot, 5_000:] = sample
        slots.arrays["v"][slot] = -sample


class Writer(Thread):
    """Reads frozen rows chunk by chunk and thaws them; `num_written` rows were those of their samples."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(name="test-writer")
        self.receiver = receiver
        self.frozen: SimpleQueue[Frozen | None] = SimpleQueue()
        self.is_idle = Event()
        self.is_idle.set()
        self.num_written = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        while (frozen := self.frozen.get()) is not None:
            try:
                self.write(frozen)
            except BaseException as error:
                self.error = error
                self.receiver.buffer.close(error)
            self.is_idle.set()

    def write(self, frozen: Frozen) -> None:
        state = frozen.state()
        samples = 100 * state["simulation_ids"] + state["time_steps"]
        assert len(set(samples.tolist())) == len(frozen)
        for start, stop in chunks(frozen, 2):
            assert (frozen.rows("u", start, stop) == samples[start:stop, None]).all()
            assert (frozen.rows("v", start, stop) == -samples[start:stop, None, None]).all()
            self.receiver.buffer.thaw(frozen, start, stop)
            self.receiver.may_go_on.set()
            self.num_written += stop - start


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
        receiver.join(timeout=120)
    for draw in held:
        trained.update(assert_whole(buffer, draw))
    assert trained == set(range(NUM_SAMPLES))
    assert num_first == NUM_SAMPLES


@pytest.mark.usefixtures("threads_change_often")
@pytest.mark.parametrize("new_policy", POLICIES.values(), ids=POLICIES)
def test_no_frozen_row_is_torn_while_a_writer_reads_it_and_the_others_go_on(
    new_policy: Callable[[int, int], Policy],
) -> None:
    slots = Slots({"u": (10_000,), "v": (3, 5)}, CAPACITY + BATCH + 2 * 12)
    slots.allocate({"u": np.float32, "v": np.int64})
    buffer = Buffer(new_policy(CAPACITY, 3), slots, spare=12)
    receiver = Receiver(buffer)
    writer = Writer(receiver)
    receiver.start()
    writer.start()
    trained: set[int] = set()
    num_frozen = num_saves = 0
    try:
        while True:
            if writer.is_idle.is_set():
                writer.is_idle.clear()
                frozen = buffer.freeze()
                num_frozen, num_saves = num_frozen + len(frozen), num_saves + 1
                writer.frozen.put(frozen)
            try:
                draw = buffer.draw(BATCH, timeout_s=10.0)
            except Closed:
                break
            assert draw is not None, "nothing to draw for 10 s"
            trained.update(assert_whole(buffer, draw))
            buffer.release(draw)
            receiver.may_go_on.set()
    except BaseException as error:
        buffer.close(error)
        raise
    finally:
        writer.frozen.put(None)
        receiver.join(timeout=120)
        writer.join(timeout=120)
    assert writer.error is None
    assert writer.num_written == num_frozen
    assert num_saves > 3
    assert trained == set(range(NUM_SAMPLES))
    assert buffer.slots.num_free == slots.num_slots
