"""The buffer of a rank, which the receiver thread fills and the training thread draws from."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from stream_server.buffers.frozen import Frozen, FurtherState, SlotRetention
from stream_server.buffers.gate import Gate
from stream_server.buffers.pins import Draw, Pins
from stream_server.buffers.policy import NO_SLOTS, Policy, SlotArray, State
from stream_server.buffers.slots import Contents, Slots
from stream_server.buffers.statics import FieldArrays
from stream_server.buffers.windows import Windows
from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint

NO_LIMIT = 2**62


class Buffer:
    """A policy, the slots it decides over, and the lock and gate between two threads.

    A slot is free, claimed (the receiver fills it), waiting (in the backlog), in the policy's population,
    retired (it left the population while a draw held it), or retained (nobody needs it, but it was frozen and is not
    on disk yet). Rows are written and read without the lock: only the receiver touches a claimed row, and nobody
    writes a row that waits until it is free again. So a row that is evicted while the training thread gathers
    it stays whole until that draw is released, and a frozen row until it is thawed.

    Of the slots, `spare` are there for what is retained. When they are used up the backlog waits, so that what is
    under way finds a slot all the same.

    Attributes:
        windows: the samples, if they are not single time steps.
        on_room: called without the lock when the backlog found room: by a draw, in the training thread, or by a thaw,
            in the thread that writes.
    """

    windows: Windows | None = None
    on_room: Callable[[], None] | None = None

    def __init__(self, policy: Policy, slots: Slots, *, spare: int = 0) -> None:
        if slots.num_slots < policy.capacity:
            raise ValueError(
                f"There must be at least as many slots as the capacity of {policy.capacity}, but are {slots.num_slots}."
            )
        self.policy = policy
        self.slots = slots
        self.spare = spare
        self._pins = Pins()
        self._retention: SlotRetention | None = None
        self._restored: deque[Draw] = deque()
        self._backlog: list[int] = []
        self._put_at = np.zeros(slots.num_slots, np.int64)
        self._num_put = 0
        self._lock = Lock()
        self._gate = Gate(self._lock, lambda num: self.policy.ready(num))

    @property
    def capacity(self) -> int:
        return self.policy.capacity

    @property
    def population(self) -> int:
        with self._lock:
            return self.policy.population

    @property
    def room(self) -> int:
        """Number of samples that the policy takes now, by free places and by eviction."""
        with self._lock:
            return self.policy.room

    @property
    def num_unseen(self) -> int:
        with self._lock:
            return self.policy.num_unseen

    @property
    def num_waiting(self) -> int:
        """Time steps in the backlog, for which there is no room yet."""
        return len(self._backlog)

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._gate.closed

    @property
    def num_never_drawn(self) -> int:
        """Samples that were never drawn: in the population, or for which there is no room yet."""
        with self._lock:
            return self.policy.num_unseen + len(self._backlog)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The axes of a sample before the axes of its fields: none, for it is one time step."""
        return ()

    def rows_of(self, samples: SlotArray) -> SlotArray:
        """The slots of the time steps of each sample, shape (num, *sample_shape)."""
        return samples

    def claim(self, num: int) -> list[int]:
        """Take `num` free slots to fill, or none at all when there are fewer. Receiver thread."""
        with self._lock:
            return self.slots.claim(num)

    def discard(self, slots: Sequence[int]) -> None:
        """Give claimed slots back that will not be filled. Receiver thread."""
        with self._lock:
            self.slots.free(slots)

    def enqueue(self, slots: Sequence[int]) -> None:
        """Append filled slots, with their keys set, to the backlog. Receiver thread."""
        failpoint("buffer.before_enqueue")
        with self._lock:
            assert not self._gate.closed or self._gate.error, "enqueue after close"
            self._backlog.extend(slots)

    @property
    def num_made(self) -> int:
        """Samples of steps in the backlog that wait for room in the policy alone, and not for slots."""
        return 0

    def admit(self, most: int = NO_LIMIT) -> list[int]:
        """Move what there is room for from the backlog into the policy, `most` at once; returns those slots.

        Receiver thread.
        """
        with self._lock:
            admitted = self._admit(most)
        if admitted:
            failpoint("buffer.admitted")
        return admitted

    def withdraw(self, simulation_id: int) -> int:
        """Drop all samples of a simulation; returns how many of them were never drawn. Receiver thread."""
        with self._lock:
            num_unseen = self._withdraw(simulation_id)
            self._gate.wake_if_ready()
        failpoint("buffer.withdrawn")
        return num_unseen

    def steps_to_compare(self, simulation_id: int) -> dict[int, int]:
        """The slots of those time steps that another attempt of the simulation is to send again, by time step.

        The last one that is here. Receiver thread: what is in these slots stays until it claims others.
        """
        with self._lock:
            slots = np.array([*self.policy.slots(), *self._backlog], np.intp)
        slots = slots[self.slots.simulation_ids[slots] == simulation_id]
        steps = dict(zip(self.slots.time_steps[slots].tolist(), slots.tolist(), strict=True))
        return dict(sorted(steps.items())[-1:])

    def part(self, simulation_id: int, time_steps: Iterable[int], is_settled: Callable[[int], bool]) -> None:
        """Make no window of one of these time steps and one that comes later: they are of two trajectories.

        `is_settled` is given indices of steps, and says which have come. Receiver thread.
        """

    def leave_out(self, simulation_id: int, time_step: int) -> None:
        """Note that a time step will never come, so that no window waits for it. Receiver thread."""

    def end(self, simulation_ids: Sequence[int]) -> None:
        """Note that nothing more comes of these simulations, so that no window waits for it. Receiver thread."""

    @property
    def num_left(self) -> int:
        """Number of draws still to come if nothing comes any more."""
        with self._lock:
            return self.policy.num_left

    def close(self, error: BaseException | None = None, *, reopens: bool = False) -> None:
        """Say that nothing comes any more: the rest is drawn, or, with an error, `draw` raises it. Any thread.

        With `reopens`, nothing comes before `reopen`: only what was never drawn must be. Closing again changes
        nothing, except that the first error counts.
        """
        with self._lock:
            self._gate.error = self._gate.error or error
            if not self._gate.error:
                assert not self._backlog, "close before the backlog was admitted"
                self._end_all()
                self._free(self._pins.retire(self.policy.end_round() if reopens else self.policy.close()))
            self._gate.close()
        failpoint("buffer.closed")

    def free_statics(self, is_running: Callable[[int], bool]) -> None:
        """Let go of the static fields of simulations that have no sample here and do not run. Receiver thread."""

        def is_needed() -> Callable[[int], bool]:
            with self._lock:
                with_samples = self.slots.simulations()
            return lambda simulation: simulation in with_samples or is_running(simulation)

        self.slots.statics.keep(is_needed)

    def reopen(self) -> None:
        """More will come after all, after a `close`. Between two turns of the receiver."""
        with self._lock:
            self.policy.reopen()
            self._gate.closed = False

    def draw(self, num: int, timeout_s: float) -> Draw | None:
        """Choose a batch of `num` samples, waiting until the policy's gate is open; None when the time is over.

        Training thread only. The order is the policy's. Batches are full while the buffer is open; after `close` what
        is left is split evenly. The rows stay as they are until `release`.

        Raises:
            ValueError: no batch of `num` can ever be drawn.
            Closed: the buffer is closed and everything was drawn.
            ProducerFailed: the buffer was closed with an error, which is the cause.
            UserCodeError: the policy gave more or fewer slots than it was asked for.
        """
        if not 0 < num <= self.policy.capacity:
            raise ValueError(f"A batch must have 1 to {self.policy.capacity} samples (the capacity), but has {num}.")
        with self._lock:
            size = self._gate.wait(num, timeout_s)
            if not size:
                return None
            slots, num_first, removed = self.policy.draw(size)
            if len(slots) != size:
                name = type(self.policy).__name__
                raise UserCodeError(f"{name}.draw({size}) must give {size} slots, but gave {len(slots)}")
            if self._gate.closed:
                np.add.at(self.slots.seen, slots, 1)  # only now a batch may hold a sample twice
            else:
                self.slots.seen[slots] += 1
            draw = self._pins.pin(slots, num_first, removed)
            room_for_backlog = self._backlog and self._num_admissible()
        if room_for_backlog and self.on_room:
            self.on_room()
        failpoint("buffer.drawn")
        return draw

    def is_first(self, draw: Draw) -> npt.NDArray[np.bool_]:
        """Mask of the samples that a draw has for the first time. Training thread, before the next draw."""
        if draw.num_first in (0, len(draw.slots)):
            return np.ones(len(draw.slots), bool) if draw.num_first else np.zeros(len(draw.slots), bool)
        is_first: npt.NDArray[np.bool_] = self.slots.seen[draw.slots] == 1
        if np.count_nonzero(is_first) == draw.num_first:
            return is_first
        # Some samples came several times in this batch, or once more since a draw that was restored: then only their
        # number counts.
        slots, places, times = np.unique(draw.slots, return_index=True, return_counts=True)
        unseen = places[self.slots.seen[slots] == times]
        if len(unseen) != draw.num_first:
            unseen = np.sort(places)[: draw.num_first]
        is_first.fill(False)
        is_first[unseen] = True
        return is_first

    def split(self, draw: Draw) -> list[Draw]:
        """Take a draw apart into one for each of its samples, in their order. Training thread, before the next draw."""
        is_first = self.is_first(draw)
        with self._lock:
            singles = [
                self._pins.pin(np.array([slot], np.intp), int(first), NO_SLOTS)
                for slot, first in zip(draw.slots.tolist(), is_first.tolist(), strict=True)
            ]
            freed = self._pins.release(draw)
        assert not freed, "a sample that its own draw does not hold"
        return singles

    def take_restored(self) -> Draw | None:
        """The next of the draws that were not released when the state was saved; they are trained first, in order.

        Training thread.
        """
        return self._restored.popleft() if self._restored else None

    def gather(self, draw: Draw, out: FieldArrays | None = None) -> FieldArrays:
        """Copy the rows of a draw into the leading rows of `out`, or into new arrays. Training thread, no lock."""
        return self.slots.gather(self.rows_of(draw.slots), out)

    def observe(self, draw: Draw) -> SlotArray:
        """The slots of the time steps that this draw is the first to have. Training thread, after each draw."""
        slots = draw.slots
        if draw.num_first < len(slots):
            slots, times = np.unique(slots, return_counts=True)
            slots = slots[self.slots.seen[slots] == times]
        return slots

    def release(self, draw: Draw) -> None:
        """Let go of the rows of a draw, once. Training thread."""
        with self._lock:
            freed = self._pins.release(draw)
            if freed:
                self._free(freed)
        failpoint("buffer.released")

    def freeze(self) -> Frozen:
        """Hold on to all samples as they are now; their rows do not change until `thaw`.

        Training thread; the receiver must be between two turns. What was frozen before and is not thawed is given up:
        its writer may still read it for a while, but in vain.
        """
        with self._lock:
            if self._retention is not None:
                self.slots.free(self._retention.thaw_all())
            policy, backlog, draws = self.policy.state_dict(), self._backlog.copy(), self._pins.draws()
            frozen = np.zeros(self.slots.num_slots, bool)
            for samples in (policy["slots"], *(draw.slots for draw in draws)):
                frozen[self.rows_of(samples)] = True
            frozen[backlog] = True
            seen = self.slots.seen.copy()
            retention, further = self._freeze(frozen)
            self._retention = retention
            slots = np.flatnonzero(frozen)
            room_for_backlog = self._num_admissible()
        failpoint("buffer.frozen")
        if room_for_backlog and self.on_room:
            self.on_room()
        return Frozen(
            self.slots,
            slots,
            policy=policy,
            backlog=backlog,
            draws=draws,
            seen=seen,
            retention=retention,
            further=further,
        )

    def thaw(self, frozen: Frozen, start: int, stop: int) -> None:
        """Say that frozen rows `start` to `stop` are on disk. The thread that writes them."""
        self._thaw(frozen, frozen.slots[start:stop])

    def thaw_all(self, frozen: Frozen) -> None:
        """Say that its rows are needed no more, because they are on disk or the writing failed. Any thread."""
        self._thaw(frozen, frozen.slots)

    def load(self, state: State) -> None:
        """Continue exactly where the `Frozen` was taken whose `state` this is. Before any other thread uses the buffer.

        The buffer is new, with slots enough (see `num_slots_to_load`), allocated unless there is no sample. The caller
        fills the rows, the first ones of `slots.arrays`, in the order of the samples.

        Raises:
            ValueError: there are fewer slots than samples, or the samples have other fields.
        """
        num = len(state["simulation_ids"])
        assert self.slots.arrays or not num, "loaded before the types of the fields are known"
        keys = ("simulation_ids", "time_steps", "seen", "present")
        self.slots.occupy(**{name: state[name] for name in keys})
        self.policy.load_state_dict(state["policy"])
        self._gate.closed = state["policy"]["closed"]
        self._backlog = np.asarray(state["backlog"]).tolist()
        self._load(state)
        for saved in state["draws"]:
            self._restored.append(self._pins.pin(np.array(saved["rows"], np.intp), saved["num_first"], NO_SLOTS))
        freed = self._pins.retire(self._retired(state))
        assert not freed, "samples that nobody holds"
        failpoint("buffer.loaded")

    def contents(self) -> Contents:
        """Copy all samples that can be drawn. Training thread; the receiver waits meanwhile."""
        with self._lock:
            slots = self.policy.slots()
            rows = self.rows_of(slots)
            return Contents(
                simulation_ids=self.slots.simulation_ids[slots],
                time_steps=self.slots.time_steps[rows],
                seen=self.slots.seen[slots],
                fields=self.slots.gather(rows),
                present={name: present[rows] for name, present in self.slots.present.items()},
            )

    def seen_counts(self) -> npt.NDArray[np.uint32]:
        """Number of draws so far of each sample that can be drawn."""
        with self._lock:
            return self.slots.seen[self.policy.slots()]

    def ages(self) -> npt.NDArray[np.int64]:
        """Number of samples that came in after each that can be drawn; a restored buffer counts from its restart."""
        with self._lock:
            return self._num_put - self._put_at[self.policy.slots()]

    def peek(self, num: int, random: np.random.Generator) -> Draw:
        """Hold at most `num` random samples that can be drawn, so that they can be read until `release`.

        Training thread. They do not count as drawn, and the policy's own random numbers stay as they are.
        """
        with self._lock:
            slots = self.policy.slots()
            if len(slots) > num:
                slots = random.choice(slots, num, replace=False)
            return self._pins.pin(slots, 0, NO_SLOTS)

    def _admit(self, most: int) -> list[int]:
        admitted: list[int] = []
        while num := min(self._num_admissible(), most - len(admitted)):
            admitted += self._put(num)
        if admitted:
            self._gate.wake_if_ready()
        return admitted

    def _withdraw(self, simulation_id: int) -> int:
        ids = self.slots.simulation_ids
        if self._retention is not None:
            old = self._backlog[: self._retention.num_waiting]
            self._retention.num_waiting -= sum(bool(ids[slot] == simulation_id) for slot in old)
        waiting = [slot for slot in self._backlog if ids[slot] == simulation_id]
        self._backlog = [slot for slot in self._backlog if ids[slot] != simulation_id]
        self._free(waiting)
        slots = self.policy.slots()
        slots = slots[ids[slots] == simulation_id]
        num_unseen = self.policy.remove(slots)
        self._free(self._pins.retire(slots))
        return len(waiting) + num_unseen

    def _num_admissible(self) -> int:
        num = min(len(self._backlog), self.policy.room)
        if num and self._retention is not None:
            num = min(num, self._retention.num_admissible(self.policy.population))
        return num

    def _put(self, num: int) -> list[int]:
        slots = self._backlog[:num]
        del self._backlog[:num]
        if self._retention is not None:
            self._retention.admit(num)
        self._put_samples(slots)
        return slots

    def _put_samples(self, slots: list[int]) -> None:
        evicted = self.policy.put(slots)
        self._num_put += len(slots)
        self._put_at[slots] = self._num_put
        if len(evicted):
            if not self.slots.seen[evicted].all():
                raise UserCodeError(f"{type(self.policy).__name__}.put evicted a sample that was never drawn")
            self._free(self._pins.retire(evicted))

    def _freeze(self, frozen: npt.NDArray[np.bool_]) -> tuple[SlotRetention, FurtherState]:
        """The retention of the frozen slots, and what else there is to save."""
        limit = self.policy.capacity + self.spare
        return SlotRetention(frozen, num_waiting=len(self._backlog), limit=limit), lambda row_of: {}

    def _load(self, state: State) -> None:
        """Continue with what else was saved."""

    def _retired(self, state: State) -> SlotArray:
        """The samples of a state that was loaded that only draws hold."""
        retired = np.ones(len(state["simulation_ids"]), bool)
        retired[self.policy.slots()] = False
        retired[self._backlog] = False
        return np.flatnonzero(retired)

    def _end_all(self) -> None:
        """End all simulations: nothing more comes of them."""

    def _free(self, slots: list[int]) -> None:
        self.slots.free(slots if self._retention is None else self._retention.retain(slots))

    def _thaw(self, frozen: Frozen, slots: SlotArray) -> None:
        with self._lock:
            # A writer that was given up, and notices it late, must not thaw what was frozen since.
            if self._retention is None or self._retention is not frozen.retention:
                return
            self.slots.free(self._retention.thaw(slots))
            if self._retention.done:
                self._retention = None
            room_for_backlog = self._num_admissible()
        failpoint("buffer.thawed")
        on_room = self.on_room
        if room_for_backlog and on_room:
            on_room()
