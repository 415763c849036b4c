"""The ledger: which steps of which simulations one server rank has settled. Pure; receiver thread."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.server.intake.saved_ledger import LedgerColumns, SavedEntry, saved_entries


class StepSet:
    """A growing set of step indices, made for asking and adding whole strided ranges at once.

    It has a byte for each index, or, as long as nobody asks, a bit.
    """

    __slots__ = ("_flags", "_num", "_packed")

    def __init__(self, packed: bytes = b"") -> None:
        self._flags: bytearray | None = None
        self._num = int.from_bytes(packed, "little").bit_count()
        self._packed: bytes | None = packed

    def __len__(self) -> int:
        return self._num

    def __contains__(self, index: int) -> bool:
        flags = self._unpacked()
        return index < len(flags) and bool(flags[index])

    @property
    def stop(self) -> int:
        """No index from here on is in the set."""
        return len(self._unpacked())

    def has_any(self, indices: range) -> bool:
        """Whether any of these is in the set."""
        return 1 in self._unpacked()[indices.start : indices.stop : indices.step]

    def add(self, indices: range) -> None:
        """Add indices none of which is in the set."""
        assert not self.has_any(indices)
        flags = self._unpacked()
        missing = indices.stop - len(flags)
        if missing > 0:
            flags.extend(bytes(missing))
        flags[indices.start : indices.stop : indices.step] = b"\1" * len(indices)
        self._num += len(indices)
        self._packed = None

    def array(self) -> NDArray[np.int64]:
        """The indices, in ascending order."""
        return np.flatnonzero(np.frombuffer(self._unpacked(), np.uint8))

    def packed(self) -> bytes:
        """One bit for each, in little-endian bit order; what did not change since the last call costs nothing."""
        if self._packed is None:
            self._packed = np.packbits(np.frombuffer(self._unpacked(), np.uint8), bitorder="little").tobytes()
        return self._packed

    def shrink(self) -> None:
        """Keep the bits alone: nothing more is expected."""
        self.packed()
        self._flags = None

    def _unpacked(self) -> bytearray:
        if self._flags is None:
            assert self._packed is not None
            self._flags = bytearray(np.unpackbits(np.frombuffer(self._packed, np.uint8), bitorder="little"))
        return self._flags


class LedgerEntry:
    """The settled steps of one simulation: accepted, or rejected for a reason.

    `complete`: the share of this rank is, whatever attempt it came from; `total` is then how many steps the
    simulation has on all ranks, None if nobody said. `finished`: this rank was told that the shares of all ranks are.
    """

    __slots__ = ("complete", "finished", "reasons", "rejected", "settled", "total")

    def __init__(self) -> None:
        self.settled = StepSet()
        self.rejected = StepSet()
        self.reasons: Counter[str] = Counter()
        self.complete = False
        self.finished = False
        self.total: int | None = None

    @property
    def num_settled(self) -> int:
        return len(self.settled)

    @property
    def num_accepted(self) -> int:
        return self.num_settled - self.num_rejected

    @property
    def num_rejected(self) -> int:
        return len(self.rejected)

    def to_save(self) -> SavedEntry:
        """All of it, as it is now."""
        return SavedEntry(
            settled=self.settled.packed(),
            rejected=self.rejected.packed(),
            reasons=dict(self.reasons),
            complete=self.complete,
            finished=self.finished,
            total=self.total,
        )

    def restore(self, saved: SavedEntry) -> None:
        """Continue with what was saved."""
        self.settled, self.rejected = StepSet(saved.settled), StepSet(saved.rejected)
        self.reasons = Counter(saved.reasons)
        self.complete, self.finished, self.total = saved.complete, saved.finished, saved.total

    def shrink(self) -> None:
        """Take less memory: nothing more is expected."""
        self.settled.shrink()
        self.rejected.shrink()

    def accepted(self) -> NDArray[np.int64]:
        """The accepted steps, in ascending order."""
        return np.setdiff1d(self.settled.array(), self.rejected.array(), assume_unique=True)

    def accept(self, indices: range) -> None:
        self.settled.add(indices)

    def reject(self, indices: range, reason: str) -> None:
        self.settled.add(indices)
        self.rejected.add(indices)
        self.reasons[reason] += len(indices)


class Ledger:
    """An entry for every simulation that this rank has heard of, and how many settled steps came again."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._entries: dict[int, LedgerEntry] = {}
        self._columns = LedgerColumns()
        # By their rows in the columns, which lag behind.
        self._unsaved: dict[int, LedgerEntry] = {}

    def __getitem__(self, simulation: int) -> LedgerEntry:
        """The entry of a simulation, an empty one if it is new."""
        entry = self._entries.get(simulation)
        if entry is None:
            entry = self._entries[simulation] = LedgerEntry()
            self._unsaved[self._columns.append(simulation)] = entry
        return entry

    @property
    def entries(self) -> Mapping[int, LedgerEntry]:
        """Everything that is written down so far."""
        return self._entries

    def complete(self) -> dict[int, int | None]:
        """The simulations whose share this rank has whole, with the number of their steps, if it knows it."""
        return {simulation: entry.total for simulation, entry in self._entries.items() if entry.complete}

    def state_dict(self) -> dict[str, Any]:
        """All of it, as `LedgerColumns`: what is finished does not change any more, and costs a copy alone."""
        for row, entry in self._unsaved.items():
            self._columns.put(row, entry.to_save())
        for row in [row for row, entry in self._unsaved.items() if entry.finished]:
            self._unsaved.pop(row).shrink()
        return {"duplicates": self.duplicates, **self._columns.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert not self._entries
        self.duplicates = int(state["duplicates"])
        for simulation, saved in saved_entries(state):
            self[simulation].restore(saved)


def finished_simulations(complete: Sequence[Mapping[int, int | None]]) -> dict[int, int | None]:
    """The simulations that are complete on every rank, with the number of their steps, if anybody knows it."""
    first, *others = complete
    everywhere = [simulation for simulation in first if all(simulation in other for other in others)]
    return {it: next((each[it] for each in complete if each[it] is not None), None) for it in everywhere}
