"""The one object that the receiver thread, which fills it, and the training thread, which draws, share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Lock

import numpy as np
import numpy.typing as npt

from stream_server.buffers.pins import Pins
from stream_server.buffers.policy import Policy, SlotArray
from stream_server.buffers.slots import FieldArrays, Slots
from stream_server.errors import Closed, ProducerFailed


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The slots of one batch, unchanged until the draw is released; `num_first` were never drawn before."""

    slots: SlotArray
    num_first: int
    ticket: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contents:
    """Copies of all samples that can be drawn, row by row; rows of a field that is not `present` are zero."""

    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]
    seen: npt.NDArray[np.uint32]
    fields: FieldArrays
    present: dict[str, npt.NDArray[np.bool_]]


class Buffer:
    """A policy, the slots it decides over, and the lock and gate between two threads.

    A slot is free, claimed (the receiver fills it), committed (it waits in the backlog), in the policy's population,
    or retired (it left the population while a draw held it). Rows are written and read without the lock: only the
    receiver touches a claimed row, and nobody writes a row from its commit until it is free again. So a row that is
    evicted while the training thread gathers it stays whole until that draw is released.

    Attributes:
        on_room: called in the training thread, without the lock, when a draw made room for the backlog.
    """

    def __init__(self, policy: Policy, slots: Slots, on_room: Callable[[], None] | None = None) -> None:
        if slots.num_slots < policy.capacity:
            raise ValueError(
                f"There must be at least as many slots as the capacity of {policy.capacity}, but are {slots.num_slots}."
            )
        self.policy = policy
        self.slots = slots
        self.on_room = on_room
        self._pins = Pins()
        self._backlog: list[int] = []
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._wanted = 0
        self._closed = False
        self._error: BaseException | None = None

    @property
    def capacity(self) -> int:
        return self.policy.capacity

    @property
    def population(self) -> int:
        with self._lock:
            return self.policy.population

    @property
    def num_unseen(self) -> int:
        with self._lock:
            return self.policy.num_unseen

    @property
    def num_waiting(self) -> int:
        """Samples that are committed and for which the policy has no room yet."""
        return len(self._backlog)

    def claim(self, num: int) -> list[int]:
        """Take `num` free slots to fill, or none at all when there are fewer. Receiver thread."""
        with self._lock:
            return self.slots.claim(num)

    def discard(self, slots: Sequence[int]) -> None:
        """Give claimed slots back that will not be committed. Receiver thread."""
        with self._lock:
            self.slots.free(slots)

    def commit(self, slots: Sequence[int]) -> None:
        """Append filled slots, with their keys set, to the backlog. Receiver thread."""
        with self._lock:
            assert not self._closed or self._error, "commit after close"
            self._backlog.extend(slots)

    def admit(self) -> list[int]:
        """Move what there is room for from the backlog into the policy; gives those slots. Receiver thread."""
        with self._lock:
            num = min(len(self._backlog), self.policy.room)
            if not num:
                return []
            admitted = self._backlog[:num]
            del self._backlog[:num]
            evicted = self.policy.put(admitted)
            if len(evicted):
                self.slots.free(self._pins.retire(evicted))
            self._wake_if_ready()
            return admitted

    def withdraw(self, simulation_id: int) -> int:
        """Drop all samples of a simulation; gives how many of them were never drawn. Receiver thread."""
        with self._lock:
            ids = self.slots.simulation_ids
            waiting = [slot for slot in self._backlog if ids[slot] == simulation_id]
            self._backlog = [slot for slot in self._backlog if ids[slot] != simulation_id]
            self.slots.free(waiting)
            slots = self.policy.slots()
            slots = slots[ids[slots] == simulation_id]
            num_unseen = self.policy.remove(slots)
            self.slots.free(self._pins.retire(slots))
            self._wake_if_ready()
            return len(waiting) + num_unseen

    def close(self, error: BaseException | None = None) -> None:
        """Say that nothing comes any more: the rest is drawn, or, with an error, `draw` raises it. Any thread.

        Closing again changes nothing, except that the first error counts.
        """
        with self._lock:
            self._error = self._error or error
            if not self._closed and not error:
                assert not self._backlog, "close before the backlog was admitted"
                self.slots.free(self._pins.retire(self.policy.close()))
            self._closed = True
            self._changed.notify_all()

    def draw(self, num: int, timeout_s: float) -> Draw | None:
        """Choose a batch of `num` samples, waiting until the policy's gate is open; None when the time is over.

        Training thread only. The order is the policy's. Batches are full while the buffer is open; after `close` what
        is left is split evenly. The rows stay as they are until `release`.

        Raises:
            ValueError: no batch of `num` can ever be drawn.
            Closed: the buffer is closed and everything was drawn.
            ProducerFailed: the buffer was closed with an error, which is the cause.
        """
        if not 0 < num <= self.policy.capacity:
            raise ValueError(f"A batch must have 1 to {self.policy.capacity} samples (the capacity), but has {num}.")
        with self._lock:
            size = 0 if self._error else self.policy.ready(num)
            if not size:
                size = self._wait(num, timeout_s)
            if not size:
                return None
            slots, num_first, removed = self.policy.draw(size)
            if self._closed:
                np.add.at(self.slots.seen, slots, 1)  # only now a batch may hold a sample twice
            else:
                self.slots.seen[slots] += 1
            draw = Draw(slots, num_first, self._pins.pin(slots, removed))
            room_for_backlog = self._backlog and self.policy.room
        if room_for_backlog and self.on_room:
            self.on_room()
        return draw

    def gather(self, draw: Draw, out: FieldArrays | None = None) -> FieldArrays:
        """Copy the rows of a draw into the leading rows of `out`, or into new arrays. Training thread, no lock."""
        return self.slots.gather(draw.slots, out)

    def release(self, draw: Draw) -> None:
        """Let go of the rows of a draw, once. Training thread."""
        with self._lock:
            freed = self._pins.release(draw.ticket)
            if freed:
                self.slots.free(freed)

    def contents(self) -> Contents:
        """Copy all samples that can be drawn. Training thread; the receiver waits meanwhile."""
        with self._lock:
            slots = self.policy.slots()
            return Contents(
                simulation_ids=self.slots.simulation_ids[slots],
                time_steps=self.slots.time_steps[slots],
                seen=self.slots.seen[slots],
                fields=self.slots.gather(slots),
                present={name: present[slots] for name, present in self.slots.present.items()},
            )

    def seen_counts(self) -> npt.NDArray[np.uint32]:
        """How often each sample that can be drawn has been drawn so far."""
        with self._lock:
            return self.slots.seen[self.policy.slots()]

    def _ready(self, num: int) -> int:
        if self._error:
            raise ProducerFailed("The thread that fills the buffer failed.") from self._error
        size = self.policy.ready(num)
        if not size and self._closed:
            raise Closed("The buffer is closed and everything in it was drawn.")
        return size

    def _wake_if_ready(self) -> None:
        # Not at each change: a wake-up for nothing costs the receiver the interpreter lock each time.
        if self._wanted and self.policy.ready(self._wanted):
            self._changed.notify()

    def _wait(self, num: int, timeout_s: float) -> int:
        self._wanted = num
        try:
            return self._changed.wait_for(lambda: self._ready(num), timeout_s)
        finally:
            self._wanted = 0
