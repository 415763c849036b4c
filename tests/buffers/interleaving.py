"""The real Buffer under its three threads, which are switched where a seed says: receiver, training and saver."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np

from stream_server.buffers import Buffer, Draw, Frozen, Slots, buffer, gate
from stream_server.errors import Closed, ProducerFailed
from tests.buffers.policies import POLICIES
from tests.faults.simulated import stand_ins
from tests.faults.simulated.threads import Threads
from tests.support.buffer_saving import chunks

NUM_SIMULATIONS = 3
BUFFERS = str(Path(buffer.__file__).parent)
FOR_EVER_S = 1000.0
# Nobody sleeps for longer than this on purpose, so that a wake-up which got lost shows in the virtual time.
PAUSE_S = 0.01
LONGEST_S = 10.0


class Broken(Exception):
    """The receiver has met something that it did not expect."""


def play(seed: int) -> None:
    """Run the history of a seed; see `Interleaving.run`."""
    Interleaving(seed).run()


class Interleaving:
    """One history. A sample is told by its number, which all values of its row are.

    The receiver keeps to its window and waits for `on_room`, without a timeout, where nothing else can bring it on.
    In some histories the threads are switched at any line of the buffer's code, not at locks and failpoints alone.
    """

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.policy = random.choice(sorted(POLICIES))
        self.batch = random.randint(1, 4)
        self.capacity = self.batch + random.randint(0, 8)
        self.window = random.randint(1, 6)
        self.held = random.randint(1, 2)
        self.spare = max(self.window, self.held * self.batch, random.randint(0, 8))
        self.num_samples = random.randint(5, 60)
        self.num_freezes = random.choice([0, 2, 8])
        self.writing_s = random.choice([0.0, PAUSE_S / 10, PAUSE_S])
        self.switched_lines = random.choice([0.0, 0.0, 0.02, 0.2])
        self.fails_after = random.choice([*[self.num_samples] * 6, random.randrange(self.num_samples)])
        self.withdrawn: set[int] = set()
        self.simulations: dict[int, int] = {}
        self.committed: set[int] = set()
        self.num_drawn: Counter[int] = Counter()
        self.num_withdrawn = self.num_first = 0
        self.has_failed = False
        self.newest: Frozen | None = None
        self.threads = Threads(random, linger=random.choice([0.0, 0.3, 0.8]))

    def run(self) -> None:
        """Let the threads run to their end, and judge what they did.

        Raises:
            AssertionError: a promise of the buffer is broken; Deadlock is one.
        """
        with self.threads as threads, stand_ins.stand_in(threads, buffer, gate):
            self.turn = stand_ins.Lock(threads)
            self.woken = stand_ins.Event(threads)
            self.to_save = stand_ins.SimpleQueue(threads)
            slots = Slots({"u": (2,)}, self.capacity + self.window + self.held * self.batch + self.spare)
            slots.allocate({"u": np.int64})
            policy = POLICIES[self.policy](self.capacity, self.random.randrange(100))
            self.buffer = Buffer(policy, slots, spare=self.spare)
            self.buffer.on_room = self.woken.set
            for function in (self.receive, self.train, self.save):
                threads.spawn(self.traced, function, name=function.__name__)
            threads.run()
            self.judge()

    def traced(self, function: Callable[[], None]) -> None:
        sys.settrace(self.enter if self.switched_lines else None)
        function()

    def enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self.pass_line if frame.f_code.co_filename.startswith(BUFFERS) else None

    def pass_line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line" and self.random.random() < self.switched_lines:
            self.threads.switch(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return self.pass_line

    def receive(self) -> None:
        """The receiver: turn by turn, until all is admitted or it fails."""
        next_sample = 0
        while next_sample < self.num_samples or self.buffer.num_waiting:
            self.woken.clear()
            if next_sample > self.fails_after:
                self.has_failed = True
                self.buffer.close(Broken())
                return
            with self.turn:
                next_sample = self.take_turn(next_sample)
            if next_sample == self.num_samples or self.buffer.num_waiting == self.window:
                if self.buffer.num_waiting:
                    self.woken.wait()
            elif self.random.random() < 0.3:
                self.woken.wait(PAUSE_S)
        with self.turn:
            self.buffer.close()

    def take_turn(self, next_sample: int) -> int:
        num = min(self.window - self.buffer.num_waiting, self.num_samples - next_sample, self.random.randint(0, 4))
        slots = self.buffer.claim(num)
        assert len(slots) == num, "a step within its credit has no slot"
        complete = [slot for sample, slot in enumerate(slots, next_sample) if self.fill(slot, sample)]
        self.buffer.discard([slot for slot in slots if slot not in complete])
        if complete:
            self.buffer.enqueue(complete)
        self.committed |= set(self.samples(complete))
        self.buffer.admit()
        if self.random.random() < 0.03:
            self.withdraw(self.random.randrange(NUM_SIMULATIONS))
            self.buffer.admit()
        return next_sample + num

    def fill(self, slot: int, sample: int) -> bool:
        """Write a row piece by piece; False for a step that never becomes complete."""
        simulation = self.random.randrange(NUM_SIMULATIONS)
        store = self.buffer.slots
        store.simulation_ids[slot], store.time_steps[slot] = simulation, sample
        for column in range(2):
            store.arrays["u"][slot, column] = sample
            self.threads.switch("filling")
        self.simulations[sample] = simulation
        return simulation not in self.withdrawn and self.random.random() < 0.95

    def withdraw(self, simulation: int) -> None:
        self.withdrawn.add(simulation)
        self.num_withdrawn += self.buffer.withdraw(simulation)

    def train(self) -> None:
        """The training: draws, looks at its rows again and again, releases, and freezes now and then."""
        held: list[tuple[Draw, list[int]]] = []
        while True:
            if self.num_freezes and self.random.random() < 0.2:
                self.freeze(held)
            try:
                draw = self.buffer.draw(self.random.randint(1, self.batch), FOR_EVER_S)
            except Closed:
                break
            except ProducerFailed:
                assert self.has_failed
                break
            assert draw is not None, "slept through its wake-up"
            samples = self.samples(draw.slots)
            self.num_drawn.update(samples)
            self.num_first += draw.num_first
            held.append((draw, samples))
            self.look(held)
            while len(held) > self.random.randint(0, self.held - 1):
                self.buffer.release(held.pop(self.random.randrange(len(held)))[0])
        self.look(held)
        for draw, _ in held:
            self.buffer.release(draw)
        self.to_save.put(None)

    def look(self, held: list[tuple[Draw, list[int]]]) -> None:
        for draw, samples in held:
            self.threads.switch("training")
            assert self.samples(draw.slots) == samples
            assert self.buffer.gather(draw)["u"].tolist() == [[sample] * 2 for sample in samples]

    def freeze(self, held: list[tuple[Draw, list[int]]]) -> None:
        self.num_freezes -= 1
        with self.turn:
            frozen = self.newest = self.buffer.freeze()
            samples, seen = self.samples(frozen.slots), self.buffer.slots.seen[frozen.slots].tolist()
            waiting = {it for it in self.committed if self.simulations[it] not in self.withdrawn}
            assert waiting - self.num_drawn.keys() <= set(samples), "a sample that was never drawn is not saved"
            assert {sample for _, drawn in held for sample in drawn} <= set(samples)
            assert len(set(samples)) == len(samples)
            if self.policy == "fifo":
                assert not {it for it in samples if self.num_drawn[it]} - {it for _, drawn in held for it in drawn}
        self.to_save.put((frozen, samples, seen))

    def save(self) -> None:
        """The saver: reads what is frozen and thaws it; some writing fails, and what is frozen anew is given up."""
        while (job := self.to_save.get()) is not None:
            frozen, samples, seen = job
            fails_at = self.random.choice([None, None, self.random.randint(0, len(samples))])
            for start, stop in chunks(frozen, 2):
                if fails_at is not None and start >= fails_at:
                    self.buffer.thaw_all(frozen)
                    break
                self.threads.sleep(self.writing_s)
                rows = frozen.rows("u", start, stop).tolist()
                if frozen is self.newest:
                    assert rows == [[sample] * 2 for sample in samples[start:stop]], "a frozen row has changed"
                self.buffer.thaw(frozen, start, stop)
            else:
                if frozen is self.newest:
                    state = frozen.state()
                    assert (state["time_steps"].tolist(), state["seen"].tolist()) == (samples, seen)

    def samples(self, slots: object) -> list[int]:
        return list(self.buffer.slots.time_steps[np.asarray(slots, np.intp)].tolist())

    def judge(self) -> None:
        """All threads have ended: what must hold then."""
        assert self.threads.now < LONGEST_S, "somebody slept who could have gone on"
        never = {it for it in self.committed if not self.num_drawn[it]}
        assert self.num_drawn.keys() <= self.committed
        if not self.has_failed:
            assert all(self.simulations[it] in self.withdrawn for it in never), "a sample was lost"
            assert self.num_first + self.num_withdrawn == len(self.committed)
            assert len(never) == self.num_withdrawn
            slots = self.buffer.slots
            assert sorted(slots._free) == list(range(slots.num_slots)), "a slot was lost, or is free twice"
        stay = {it: num for it, num in self.num_drawn.items() if self.simulations[it] not in self.withdrawn}
        exactly = {"fifo": 1, "firo": 1, "firo-3-incarnations": 3}.get(self.policy)
        if exactly is not None:
            assert max(self.num_drawn.values(), default=0) <= exactly, "a sample was drawn twice"
            assert self.has_failed or set(stay.values()) <= {exactly}
