"""The samples of a buffer at one moment, to be written while the buffer goes on, and the slots kept back for them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import SlotArray, State
from stream_server.buffers.slots import Slots
from stream_server.buffers.windows import WINDOWS
from stream_server.ragged import array_of

FurtherState = Callable[[npt.NDArray[np.int64]], State]
"""The rest of a buffer's state, given the row of each frozen slot."""


class Frozen:
    """The samples of a buffer as they were: row i is that of the i-th of `slots`, which ascend.

    The rows, their keys and `present` are those of the live buffer, which does not change them before they are thawed
    with `Buffer.thaw`, chunk by chunk as they are on disk. For one thread, any. `retention` is the buffer's, `statics`
    are the fields that the samples of a simulation share.
    """

    def __init__(
        self,
        store: Slots,
        slots: SlotArray,
        *,
        policy: State,
        backlog: Sequence[int],
        draws: Sequence[Draw],
        seen: npt.NDArray[np.uint32],
        retention: "SlotRetention",
        further: FurtherState,
    ) -> None:
        self.slots = slots
        self.retention = retention
        self.statics = store.statics.freeze()
        self._store = store
        self._policy = policy
        self._backlog = backlog
        self._draws = draws
        self._seen = seen
        self._further = further
        self._state: State | None = None
        self._lengths: dict[str, npt.NDArray[np.int64]] = {}
        self._scratch: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of one row of each field; empty while no type is known, when there is no row either."""
        return {name: (array.dtype, array.shape[1:]) for name, array in self._store.arrays.items()}

    @property
    def lengths(self) -> dict[str, npt.NDArray[np.int64]]:
        """The lengths of each ragged field in all rows."""
        self.state()
        return self._lengths

    def state(self) -> State:
        """Everything but the values of the fields, in plain containers and arrays; a sample is told by its row.

        `policy` is that of `Policy.state_dict`, `backlog` are rows, `draws` are the batches that were not released, in
        their order, each with `rows` and `num_first`; `simulation_ids`, `time_steps`, `seen` and `present`, which
        has an array for each field, have one element per row.
        """
        if self._state is None:
            self._state = self._make_state()
        return self._state

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """The values of one field in rows `start` to `stop`, in C order, valid until the next call for this field.

        Of a ragged field they are an array of arrays.
        """
        self.state()  # before the first row can be thawed
        array, slots = self._store.arrays[name], self.slots[start:stop]
        if name in self._lengths:
            lengths = self._lengths[name][start:stop].tolist()
            return array_of([array[slot, :length] for slot, length in zip(slots.tolist(), lengths, strict=True)])
        if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
            return array[slots[0] : slots[-1] + 1]
        scratch = self._scratch.get(name)
        if scratch is None or len(scratch) < len(slots):
            scratch = self._scratch[name] = np.empty((len(slots), *array.shape[1:]), array.dtype)
        return array.take(slots, 0, scratch[: len(slots)], "clip")

    def _make_state(self) -> State:
        store, slots = self._store, self.slots
        row_of = np.empty(store.num_slots, np.int64)
        row_of[slots] = np.arange(len(slots))
        self._lengths = {name: lengths.take(slots) for name, lengths in store.lengths.items()}
        return {
            "policy": {**self._policy, "slots": row_of.take(self._policy["slots"])},
            "backlog": row_of.take(np.asarray(self._backlog, np.intp)),
            "draws": [{"rows": row_of.take(draw.slots), "num_first": draw.num_first} for draw in self._draws],
            "simulation_ids": store.simulation_ids.take(slots),
            "time_steps": store.time_steps.take(slots),
            "seen": self._seen.take(slots),
            "present": {name: present.take(slots) for name, present in store.present.items()},
            **self._further(row_of),
        }


def num_slots_to_load(state: State, *, capacity: int, planned: int) -> int:
    """Number of slots that a buffer needs to continue with `state`, if `planned` are enough for an empty one.

    What exceeds the capacity, waits, or is held by draws of another number of ranks has slots of its own.
    """
    population = len(state["policy"]["slots"])
    if WINDOWS in state:
        return planned + len(state["simulation_ids"])
    return planned + max(0, population - capacity) + len(state["simulation_ids"]) - population


class SlotRetention:
    """Keeps frozen slots back that would be free, until they are thawed. For one thread at a time.

    What is kept back takes the place of new samples. All steps that there is credit for find a slot as long as no more
    than `limit` slots are in the population, kept back here, or frozen in the backlog; for `limit`, the spare slots
    must be as many as the credit of all simulations together at least. A sample that waited at the freeze may always
    enter the population: it brings its place along.

    Attributes:
        num_retained: slots that are kept back now.
        num_waiting: samples of the backlog that were there at the freeze; they lead it.
    """

    def __init__(self, frozen: npt.NDArray[np.bool_], *, num_waiting: int, limit: int) -> None:
        self.num_retained = 0
        self.num_waiting = num_waiting
        self._frozen = frozen
        self._num_frozen = int(np.count_nonzero(frozen))
        self._retained = np.zeros(len(frozen), bool)
        self._limit = limit

    @property
    def done(self) -> bool:
        """Everything is thawed."""
        return not self._num_frozen

    def num_admissible(self, population: int) -> int:
        """Number of samples of the backlog that may enter a population of this size, if the policy has room."""
        taken = population + self.num_retained + self.num_waiting
        return self.num_waiting + max(0, self._limit - taken)

    def admit(self, num: int) -> None:
        """Say that the first `num` samples of the backlog entered the population."""
        self.num_waiting -= min(num, self.num_waiting)

    def retain(self, slots: Sequence[int]) -> list[int]:
        """Take slots that nobody holds any more; returns those that are free at once and keeps the frozen ones back."""
        numbers = np.asarray(slots, np.intp)
        frozen = self._frozen[numbers]
        kept = numbers[frozen]
        self._retained[kept] = True
        self.num_retained += len(kept)
        return list(numbers[~frozen].tolist())

    def thaw(self, slots: SlotArray) -> list[int]:
        """Say that these rows are on disk; returns the slots that are free by this."""
        self._num_frozen -= int(np.count_nonzero(self._frozen[slots]))
        self._frozen[slots] = False
        freed = slots[self._retained[slots]]
        self._retained[freed] = False
        self.num_retained -= len(freed)
        return list(freed.tolist())

    def thaw_all(self) -> list[int]:
        """Say that no row is needed any more; returns the slots that are free by this."""
        return self.thaw(np.flatnonzero(self._frozen))
