"""The ledger: which steps of which simulations one server rank has settled. Pure; receiver thread.

Why: docs/decisions/0041-state-as-rows.md
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_server.messages.routing import Dealing


class StepSet:
    """A growing set of step indices, made for asking and adding whole strided ranges at once.

    It has a byte for each index, or, once it was packed, a bit, until somebody asks again.
    """

    __slots__ = ("_flags", "_num", "_packed")

    def __init__(self, packed: bytes = b"") -> None:
        self._flags: bytearray | None = None
        self._num = int.from_bytes(packed, "little").bit_count()
        self._packed = packed

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

    def array(self) -> NDArray[np.int64]:
        """The indices, in ascending order."""
        return np.flatnonzero(np.frombuffer(self._unpacked(), np.uint8))

    def packed(self) -> bytes:
        """One bit for each, in little-endian bit order; what did not change since the last call costs nothing."""
        if self._flags is not None:
            self._packed = np.packbits(np.frombuffer(self._flags, np.uint8), bitorder="little").tobytes()
            self._flags = None
        return self._packed

    def _unpacked(self) -> bytearray:
        if self._flags is None:
            self._flags = bytearray(np.unpackbits(np.frombuffer(self._packed, np.uint8), bitorder="little"))
        return self._flags


class LedgerEntry(msgspec.Struct, array_like=True):
    """The settled steps of one simulation: accepted, or rejected for a reason.

    `complete`: the share of this rank is, whatever attempt it came from; `total` is then how many steps the
    simulation has on all ranks, None if nobody said. `finished`: this rank was told that the shares of all ranks are.
    """

    simulation: int
    settled: StepSet = msgspec.field(default_factory=StepSet)
    rejected: StepSet = msgspec.field(default_factory=StepSet)
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    complete: bool = False
    finished: bool = False
    total: int | None = None

    @property
    def num_settled(self) -> int:
        return len(self.settled)

    @property
    def num_accepted(self) -> int:
        return self.num_settled - self.num_rejected

    @property
    def num_rejected(self) -> int:
        return len(self.rejected)

    def accepted(self) -> NDArray[np.int64]:
        """The accepted steps, in ascending order."""
        return np.setdiff1d(self.settled.array(), self.rejected.array(), assume_unique=True)

    def accept(self, indices: range) -> None:
        self.settled.add(indices)

    def reject(self, indices: range, reason: str) -> None:
        self.settled.add(indices)
        self.rejected.add(indices)
        self.reasons[reason] = self.reasons.get(reason, 0) + len(indices)


class Ledger:
    """An entry for every simulation that this rank has heard of, and how many settled steps came again."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._entries: dict[int, LedgerEntry] = {}

    def __getitem__(self, simulation: int) -> LedgerEntry:
        """The entry of a simulation, an empty one if it is new."""
        entry = self._entries.get(simulation)
        if entry is None:
            entry = self._entries[simulation] = LedgerEntry(simulation)
        return entry

    @property
    def entries(self) -> Mapping[int, LedgerEntry]:
        """Everything that is written down so far."""
        return self._entries

    def complete(self) -> dict[int, int | None]:
        """The simulations whose share this rank has whole, with the number of their steps, if it knows it."""
        return {simulation: entry.total for simulation, entry in self._entries.items() if entry.complete}

    def state_dict(self) -> dict[str, Any]:
        return _state(self.duplicates, list(self._entries.values()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert not self._entries
        self.duplicates = int(state["duplicates"])
        self._entries = {entry.simulation: entry for entry in saved_entries(state)}

    @staticmethod
    def redealt(states: Sequence[Mapping[str, Any]], rank: int, dealing: Dealing) -> dict[str, Any]:
        """Every step goes to the rank to which its routing brings it now. A share is complete only if all were.

        `finished` is copied from the old rank with the same number.
        """
        saved = [{entry.simulation: entry for entry in saved_entries(state)} for state in states]
        entries = [
            _redealt_entry(simulation, [entries.get(simulation) for entries in saved], rank, dealing)
            for simulation in sorted({simulation for entries in saved for simulation in entries})
        ]
        return _state(0 if rank else sum(state["duplicates"] for state in states), entries)


def saved_entries(state: Mapping[str, Any]) -> list[LedgerEntry]:
    """The entries in what `Ledger.state_dict` gave."""
    return msgspec.msgpack.decode(state["entries"], type=list[LedgerEntry], dec_hook=_step_set)


def _state(duplicates: int, entries: Sequence[LedgerEntry]) -> dict[str, Any]:
    # As one value: a saver would take long to walk through as many as there are simulations.
    return {"duplicates": duplicates, "entries": msgspec.msgpack.encode(entries, enc_hook=StepSet.packed)}


def _step_set(kind: type, packed: Any) -> StepSet:
    return StepSet(msgspec.convert(packed, bytes))


def finished_simulations(complete: Sequence[Mapping[int, int | None]]) -> dict[int, int | None]:
    """The simulations that are complete on every rank, with the number of their steps, if anybody knows it."""
    first, *others = complete
    everywhere = [simulation for simulation in first if all(simulation in other for other in others)]
    return {it: next((each[it] for each in complete if each[it] is not None), None) for it in everywhere}


def _redealt_entry(simulation: int, saved: Sequence[LedgerEntry | None], rank: int, dealing: Dealing) -> LedgerEntry:
    known = [it for it in saved if it is not None]
    settled, rejected = _union([it.settled for it in known]), _union([it.rejected for it in known])
    shares = [_of_share(rejected, dealing.share(simulation, it, len(rejected))) for it in range(rank + 1)]
    # Which rejected step had which reason is not written down; the sums over the ranks stay what they were.
    reasons = iter([reason for it in known for reason, num in it.reasons.items() for _ in range(num)])
    *_, own = [list(islice(reasons, int(np.count_nonzero(bits)))) for bits in shares]
    return LedgerEntry(
        simulation,
        settled=_set_of(_of_share(settled, dealing.share(simulation, rank, len(settled)))),
        rejected=_set_of(shares[-1]),
        reasons=Counter(own),
        complete=len(known) == len(saved) and all(it.complete for it in known),
        finished=any(it is not None and it.finished for it in saved[rank : rank + 1]),
        total=next((it.total for it in known if it.total is not None), None),
    )


def _union(sets: Sequence[StepSet]) -> NDArray[np.bool_]:
    union = np.zeros(max(it.stop for it in sets), bool)
    for it in sets:
        union[it.array()] = True
    return union


def _of_share(bits: NDArray[np.bool_], share: range) -> NDArray[np.bool_]:
    mine = np.zeros_like(bits)
    indices = slice(share.start, share.stop, share.step)
    mine[indices] = bits[indices]
    return mine


def _set_of(bits: NDArray[np.bool_]) -> StepSet:
    return StepSet(np.packbits(bits, bitorder="little").tobytes())
