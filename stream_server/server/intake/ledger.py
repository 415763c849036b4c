"""The ledger: which steps of which simulations one server rank has settled. Pure; receiver thread."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.messages.client import Routing
from stream_server.messages.routing import share


class StepSet:
    """A growing set of step indices, made for asking and adding whole strided ranges at once: one byte for each."""

    __slots__ = ("_flags", "_num", "_packed")

    def __init__(self, packed: bytes = b"") -> None:
        self._flags = bytearray(np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little"))
        self._num = self._flags.count(1)
        self._packed: bytes | None = None

    def __len__(self) -> int:
        return self._num

    def __contains__(self, index: int) -> bool:
        return index < len(self._flags) and bool(self._flags[index])

    @property
    def stop(self) -> int:
        """No index from here on is in the set."""
        return len(self._flags)

    def has_any(self, indices: range) -> bool:
        """Whether any of these is in the set."""
        return 1 in self._flags[indices.start : indices.stop : indices.step]

    def add(self, indices: range) -> None:
        """Add indices none of which is in the set."""
        assert not self.has_any(indices)
        missing = indices.stop - len(self._flags)
        if missing > 0:
            self._flags.extend(bytes(missing))
        self._flags[indices.start : indices.stop : indices.step] = b"\1" * len(indices)
        self._num += len(indices)
        self._packed = None

    def array(self) -> NDArray[np.int64]:
        """The indices, in ascending order."""
        return np.flatnonzero(np.frombuffer(self._flags, np.uint8))

    def packed(self) -> bytes:
        """One bit for each, in little-endian bit order; what did not change since the last call costs nothing."""
        if self._packed is None:
            self._packed = np.packbits(np.frombuffer(self._flags, np.uint8), bitorder="little").tobytes()
        return self._packed


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
    def num_accepted(self) -> int:
        return len(self.settled) - len(self.rejected)

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
        self.reasons[reason] += len(indices)


class Ledger:
    """An entry for every simulation that this rank has heard of, and how many settled steps came again."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._entries: dict[int, LedgerEntry] = {}

    def __getitem__(self, simulation: int) -> LedgerEntry:
        """The entry of a simulation, an empty one if it is new."""
        entry = self._entries.get(simulation)
        if entry is None:
            entry = self._entries[simulation] = LedgerEntry()
        return entry

    @property
    def entries(self) -> Mapping[int, LedgerEntry]:
        """Everything that is written down so far."""
        return self._entries

    def state_dict(self) -> dict[str, Any]:
        return {
            "duplicates": self.duplicates,
            "marks": {
                simulation: {
                    "settled": np.frombuffer(entry.settled.packed(), np.uint8),
                    "rejected": np.frombuffer(entry.rejected.packed(), np.uint8),
                    "reasons": dict(entry.reasons),
                    "complete": entry.complete,
                    "finished": entry.finished,
                    "total": entry.total,
                }
                for simulation, entry in self._entries.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.duplicates = int(state["duplicates"])
        self._entries = {}
        for simulation, saved in state["marks"].items():
            entry = self[int(simulation)]
            entry.settled = StepSet(np.asarray(saved["settled"], np.uint8).tobytes())
            entry.rejected = StepSet(np.asarray(saved["rejected"], np.uint8).tobytes())
            entry.reasons = Counter({str(reason): int(num) for reason, num in saved["reasons"].items()})
            entry.complete = bool(saved["complete"])
            # A checkpoint of an earlier release does not say so, and everybody is told again.
            entry.finished = bool(saved.get("finished"))
            entry.total = saved["total"]


def redealt(states: Sequence[Mapping[str, Any]], rank: int, num_ranks: int, routing: Routing) -> dict[str, Any]:
    """The state of the ledger of one of `num_ranks` ranks, out of those of all ranks of another number of them.

    Every step goes to the rank to which its routing brings it now. A share is complete only if all were. A rank knows
    of the ends that the one of its number was told of.
    """
    simulations = {simulation for state in states for simulation in state["marks"]}
    return {
        "duplicates": sum(state["duplicates"] for state in states) if rank == 0 else 0,
        "marks": {
            simulation: _redealt_entry(
                simulation, [state["marks"].get(simulation) for state in states], rank, num_ranks, routing
            )
            for simulation in sorted(simulations)
        },
    }


def _redealt_entry(
    simulation: int, saved: Sequence[Mapping[str, Any] | None], rank: int, num_ranks: int, routing: Routing
) -> dict[str, Any]:
    known = [it for it in saved if it is not None]
    settled, rejected = (_union([it[name] for it in known]) for name in ("settled", "rejected"))
    shares = [_of_share(rejected, share(routing, simulation, it, num_ranks, len(rejected))) for it in range(rank + 1)]
    # Which rejected step had which reason is not written down; the sums over the ranks stay what they were.
    reasons = iter([reason for it in known for reason, num in it["reasons"].items() for _ in range(num)])
    *_, own = [list(islice(reasons, int(np.count_nonzero(bits)))) for bits in shares]
    return {
        "settled": np.packbits(
            _of_share(settled, share(routing, simulation, rank, num_ranks, len(settled))), bitorder="little"
        ),
        "rejected": np.packbits(shares[-1], bitorder="little"),
        "reasons": dict(Counter(own)),
        "complete": len(known) == len(saved) and all(it["complete"] for it in known),
        "finished": any(it is not None and bool(it.get("finished")) for it in saved[rank : rank + 1]),
        "total": next((it["total"] for it in known if it["total"] is not None), None),
    }


def _union(packed: Sequence[NDArray[np.uint8]]) -> NDArray[np.bool_]:
    flags = [np.unpackbits(np.asarray(bits, np.uint8), bitorder="little").astype(bool) for bits in packed]
    union = np.zeros(max((len(it) for it in flags), default=0), bool)
    for it in flags:
        union[: len(it)] |= it
    return union


def _of_share(bits: NDArray[np.bool_], indices: range) -> NDArray[np.bool_]:
    mine = np.zeros_like(bits)
    mine[indices.start : indices.stop : indices.step] = bits[indices.start : indices.stop : indices.step]
    return mine
