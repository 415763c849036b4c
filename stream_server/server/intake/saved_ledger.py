"""The ledger as a checkpoint has it: a row for each simulation, and how the rows are dealt to other ranks. Pure."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.messages.routing import Dealing

UNKNOWN = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedEntry:
    """The entry of one simulation. The sets of settled and of rejected steps have a bit for each step."""

    settled: bytes = b""
    rejected: bytes = b""
    reasons: Mapping[str, int]
    complete: bool = False
    finished: bool = False
    total: int | None = None

    @property
    def num_accepted(self) -> int:
        return num_in(self.settled) - num_in(self.rejected)


class LedgerColumns:
    """The entries of a ledger, column by column: as many objects as simulations would take a saver long to encode.

    `state_dict` copies the columns, so that its cost for what has not changed is that of a copy.
    """

    def __init__(self) -> None:
        self._simulations = array("q")
        self._settled: list[bytes] = []
        self._rejected: list[bytes] = []
        self._complete = bytearray()
        self._finished = bytearray()
        self._totals = array("q")
        self._reasons: dict[int, dict[str, int]] = {}

    def append(self, simulation: int) -> int:
        """Begin the row of another simulation; gives its number."""
        self._simulations.append(simulation)
        self._settled.append(b"")
        self._rejected.append(b"")
        self._complete.append(False)
        self._finished.append(False)
        self._totals.append(UNKNOWN)
        return len(self._simulations) - 1

    def put(self, row: int, entry: SavedEntry) -> None:
        """Write a row."""
        self._settled[row], self._rejected[row] = entry.settled, entry.rejected
        self._complete[row], self._finished[row] = entry.complete, entry.finished
        self._totals[row] = UNKNOWN if entry.total is None else entry.total
        if entry.reasons:
            self._reasons[self._simulations[row]] = dict(entry.reasons)

    def state_dict(self) -> dict[str, Any]:
        """The columns. Sets of steps lie one behind the other, `settled_bytes` and `rejected_bytes` long."""
        return {
            "simulations": np.array(self._simulations, np.int64),
            "complete": np.array(self._complete, bool),
            "finished": np.array(self._finished, bool),
            "total": np.array(self._totals, np.int64),
            "reasons": {simulation: dict(reasons) for simulation, reasons in sorted(self._reasons.items())},
            **_joined("settled", self._settled),
            **_joined("rejected", self._rejected),
        }


def saved_entries(state: Mapping[str, Any]) -> Iterator[tuple[int, SavedEntry]]:
    """Go through what `LedgerColumns.state_dict` gave, simulation by simulation."""
    reasons = {int(simulation): of_one for simulation, of_one in state["reasons"].items()}
    columns = (state["complete"], state["finished"], state["total"])
    rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    sets = zip(_parted("settled", state), _parted("rejected", state), strict=True)
    simulations = np.asarray(state["simulations"]).tolist()
    for simulation, (settled, rejected), (complete, finished, total) in zip(simulations, sets, rows, strict=True):
        yield (
            simulation,
            SavedEntry(
                settled=settled,
                rejected=rejected,
                reasons={str(reason): int(num) for reason, num in reasons.get(simulation, {}).items()},
                complete=complete,
                finished=finished,
                total=None if total == UNKNOWN else total,
            ),
        )


def num_in(packed: bytes) -> int:
    """How many steps are in a set with a bit for each."""
    return int.from_bytes(packed, "little").bit_count()


def redealt(states: Sequence[Mapping[str, Any]], rank: int, dealing: Dealing) -> dict[str, Any]:
    """The state of the ledger of one of the ranks of `dealing`, out of those of all ranks of another number of them.

    Every step goes to the rank to which its routing brings it now. A share is complete only if all were. A rank knows
    of the ends that the one of its number was told of.
    """
    saved = [dict(saved_entries(state)) for state in states]
    columns = LedgerColumns()
    for simulation in sorted({simulation for entries in saved for simulation in entries}):
        of_ranks = [entries.get(simulation) for entries in saved]
        columns.put(columns.append(simulation), _redealt_entry(simulation, of_ranks, rank, dealing))
    return {
        "duplicates": sum(state["duplicates"] for state in states) if rank == 0 else 0,
        **columns.state_dict(),
    }


def _redealt_entry(simulation: int, saved: Sequence[SavedEntry | None], rank: int, dealing: Dealing) -> SavedEntry:
    known = [it for it in saved if it is not None]
    settled, rejected = _union([it.settled for it in known]), _union([it.rejected for it in known])
    shares = [_of_share(rejected, dealing.share(simulation, it, len(rejected))) for it in range(rank + 1)]
    # Which rejected step had which reason is not written down; the sums over the ranks stay what they were.
    reasons = iter([reason for it in known for reason, num in it.reasons.items() for _ in range(num)])
    *_, own = [list(islice(reasons, int(np.count_nonzero(bits)))) for bits in shares]
    return SavedEntry(
        settled=_packed(_of_share(settled, dealing.share(simulation, rank, len(settled)))),
        rejected=_packed(shares[-1]),
        reasons=Counter(own),
        complete=len(known) == len(saved) and all(it.complete for it in known),
        finished=any(it is not None and it.finished for it in saved[rank : rank + 1]),
        total=next((it.total for it in known if it.total is not None), None),
    )


def _union(packed: Sequence[bytes]) -> NDArray[np.bool_]:
    flags = [np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").astype(bool) for bits in packed]
    union = np.zeros(max(map(len, flags)), bool)
    for it in flags:
        union[: len(it)] |= it
    return union


def _of_share(bits: NDArray[np.bool_], share: range) -> NDArray[np.bool_]:
    mine = np.zeros_like(bits)
    indices = slice(share.start, share.stop, share.step)
    mine[indices] = bits[indices]
    return mine


def _packed(bits: NDArray[np.bool_]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _joined(name: str, sets: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    return {
        name: np.frombuffer(b"".join(sets), np.uint8),
        f"{name}_bytes": np.fromiter(map(len, sets), np.int64, len(sets)),
    }


def _parted(name: str, state: Mapping[str, Any]) -> Iterator[bytes]:
    joined = np.asarray(state[name], np.uint8).tobytes()
    end = 0
    for num_bytes in np.asarray(state[f"{name}_bytes"]).tolist():
        start, end = end, end + num_bytes
        yield joined[start:end]
