"""The ledger as a checkpoint has it: a row for each simulation, and how the rows are dealt to other ranks. Pure."""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.messages.routing import Dealing, StudyRouting

UNKNOWN = -1

Flags = NDArray[np.bool_]


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


BlockStep = tuple[int, int, int]
"""A simulation, a block, and a step of it."""


def redealt(
    states: Sequence[Mapping[str, Any]],
    rank: int,
    num_ranks: int,
    routing: StudyRouting,
    repeated_steps: Collection[BlockStep] = (),
) -> dict[str, Any]:
    """The state of the ledger of one of `num_ranks` ranks, out of those of all ranks of another number of them.

    Every step goes to the rank to which its routing brings it now; of two blocks that have it, only if both know it,
    where both are of this rank. A block knows what its rank has settled, and its `repeated_steps`. A share is complete
    only if all were. A rank knows of the ends that the one of its number was told of.
    """
    columns = LedgerColumns()
    for simulation, of_ranks in _by_simulation(states):
        known = [(block, step) for of, block, step in repeated_steps if of == simulation]
        entry = _redealt_entry(simulation, of_ranks, rank, num_ranks, routing, known)
        columns.put(columns.append(simulation), entry)
    return {
        "duplicates": sum(state["duplicates"] for state in states) if rank == 0 else 0,
        **columns.state_dict(),
    }


def torn_steps(
    states: Sequence[Mapping[str, Any]],
    num_ranks: int,
    routing: StudyRouting,
    repeated_steps: Collection[BlockStep] = (),
) -> list[BlockStep]:
    """The steps that only one of their two blocks knows, with that block, if both are of the same one of the ranks."""
    if num_ranks > 1 or not routing.overlap:
        return []
    return [
        (simulation, block, step)
        for simulation, of_ranks in _by_simulation(states)
        for block, step in _known(
            simulation, of_ranks, routing, [it[1:] for it in repeated_steps if it[0] == simulation]
        ).torn
    ]


class _Known:
    """The blocks that know each step of a simulation, and those that have rejected it.

    `first` and `last` are those blocks, step by step; the first one counts the step. What it has rejected is rejected;
    what only the last one has comes again.
    """

    def __init__(self, simulation: int, saved: Sequence[SavedEntry | None], dealing: Dealing, num_steps: int) -> None:
        steps = np.arange(num_steps)
        settled, rejected = np.zeros((2, len(saved), num_steps), bool)
        for rank, it in enumerate(saved):
            for flags, packed in () if it is None else ((settled, it.settled), (rejected, it.rejected)):
                of_rank = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[:num_steps]
                flags[rank, : len(of_rank)] = of_rank
        self.first: NDArray[np.int64] = np.maximum(0, steps - dealing.overlap) // dealing.block
        self.last: NDArray[np.int64] = steps // dealing.block
        of_first, of_last = (dealing.ranks_of(simulation, blocks) for blocks in (self.first, self.last))
        self.by_first: Flags = settled[of_first, steps]
        self.rejected_by_first: Flags = rejected[of_first, steps]
        rejected_by_last: Flags = rejected[of_last, steps]
        self.rejected_by_last: Flags = self.rejected_by_first | (rejected_by_last & self.by_first)
        self.by_last: Flags = (settled[of_last, steps] & ~rejected_by_last) | self.rejected_by_last

    @property
    def torn(self) -> list[tuple[int, int]]:
        """The blocks and steps of which the other block of the step knows nothing."""
        by_first = np.flatnonzero(self.by_first & ~self.by_last)
        by_last = np.flatnonzero(self.by_last & ~self.by_first)
        return [(int(self.first[it]), int(it)) for it in by_first] + [(int(self.last[it]), int(it)) for it in by_last]


def _by_simulation(states: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, list[SavedEntry | None]]]:
    saved = [dict(saved_entries(state)) for state in states]
    for simulation in sorted({simulation for entries in saved for simulation in entries}):
        yield simulation, [entries.get(simulation) for entries in saved]


def _known(
    simulation: int,
    saved: Sequence[SavedEntry | None],
    routing: StudyRouting,
    repeated_steps: Sequence[tuple[int, int]],
) -> _Known:
    sizes = [8 * len(it.settled) for it in saved if it is not None]
    num_steps = max([*sizes, *(step + 1 for _, step in repeated_steps)])
    known = _Known(simulation, saved, routing.dealing(simulation, len(saved)), num_steps)
    for block, step in repeated_steps:
        known.by_first[step] |= known.first[step] == block
        known.by_last[step] |= known.last[step] == block
    return known


def _redealt_entry(
    simulation: int,
    saved: Sequence[SavedEntry | None],
    rank: int,
    num_ranks: int,
    routing: StudyRouting,
    repeated_steps: Sequence[tuple[int, int]],
) -> SavedEntry:
    dealing = routing.dealing(simulation, num_ranks)
    there = [it for it in saved if it is not None]
    known = _known(simulation, saved, routing, repeated_steps)
    of_first, of_last = (dealing.ranks_of(simulation, blocks) == rank for blocks in (known.first, known.last))
    settled: Flags = (of_first | of_last) & (known.by_first | ~of_first) & (known.by_last | ~of_last)
    rejected: Flags = settled & ((known.rejected_by_first & of_first) | (known.rejected_by_last & of_last))
    # Which rejected step had which reason is not written down; the sums over the ranks stay what they were.
    reasons = iter([reason for it in there for reason, num in it.reasons.items() for _ in range(num)])
    counted = np.flatnonzero(known.rejected_by_first)
    nums = [int(np.count_nonzero(dealing.counts(simulation, it, counted))) for it in range(rank + 1)]
    *_, own = [list(islice(reasons, num)) for num in nums]
    return SavedEntry(
        settled=_packed(settled),
        rejected=_packed(rejected),
        reasons=Counter(own),
        complete=len(there) == len(saved) and all(it.complete for it in there),
        finished=any(it is not None and it.finished for it in saved[rank : rank + 1]),
        total=next((it.total for it in there if it.total is not None), None),
    )


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
