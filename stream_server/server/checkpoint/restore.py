"""Restore: the state that a rank takes back from a checkpoint, on as many ranks as saved it or on others.

Why: docs/decisions/0042-restore.md
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Policy, WindowShape
from stream_server.buffers.redeal import Dealt, redeal
from stream_server.buffers.statics import StaticFields
from stream_server.buffers.window_buffer import num_windows_waiting
from stream_server.buffers.windows import WINDOWS
from stream_server.messages.routing import Dealing
from stream_server.ragged import copied
from stream_server.server.checkpoint.folder import RANK, ROWS, rank_folder
from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.intake.saved_ledger import redealt, saved_entries
from stream_server.server.intake.source import REPLAY
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.storage.plain_state import read_state
from stream_server.storage.sample_file import SampleLayout, read_rows

Arrays = dict[str, NDArray[Any]]


class SavedRank:
    """The files of one rank in the folder of a checkpoint."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder / rank_folder(rank)

    @cached_property
    def state(self) -> dict[str, Any]:
        """Everything but the samples' values."""
        state: dict[str, Any] = read_state(self.folder / RANK)
        return state

    def rows(self, name: str) -> Iterator[tuple[range, Arrays]]:
        """The rows of the buffer, the held-out ones or the static fields, chunk by chunk."""
        return read_rows(self.folder / ROWS[name], self._layout(name))

    def held_out(self) -> Arrays:
        """All rows of the validation store."""
        layout = self._layout("held_out")
        arrays: Arrays = {
            name: np.empty(layout.num_rows, object)
            if name in layout.lengths
            else np.empty((layout.num_rows, *shape), dtype)
            for name, dtype, shape in layout.fields
        }
        for rows, values in self.rows("held_out"):
            for name, array in arrays.items():
                array[rows.start : rows.stop] = copied(values[name]) if name in layout.lengths else values[name]
        return arrays

    def into_statics(self, statics: StaticFields, simulations: Collection[int] | None) -> None:
        """Load the static fields of these simulations, or of all."""
        saved = self.state.get("statics")
        if saved is None:
            return
        for rows, values in self.rows("statics"):
            for place, row in enumerate(rows):
                simulation = int(saved["simulations"][row])
                if simulations is None or simulation in simulations:
                    arrays = {name: array[place].copy() for name, array in values.items()}
                    statics.put(simulation, arrays, observed=bool(saved["observed"][row]))

    def _layout(self, name: str) -> SampleLayout:
        return SampleLayout.from_plain(self.state[name]["layout"])


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRestore:
    """The state that a rank takes back: its own as it was saved, or, on another number of ranks, its share of all.

    `state` is what `StudyCapture` saves of a rank, of a share without the random generators. `dealt` is this rank's
    share of all buffers, None where it has its own. `incarnation` is the one that saved it. `whole_simulations`: the
    steps of a held-out simulation belong together.
    """

    incarnation: int
    parts: Sequence[SavedRank]
    state: dict[str, Any]
    dealt: Dealt | None
    whole_simulations: bool = False

    @property
    def is_own(self) -> bool:
        """Whether this rank goes on as it was, to the last bit."""
        return self.dealt is None

    @property
    def buffer(self) -> dict[str, Any]:
        """The state of the buffer, but for the samples' values."""
        buffer: dict[str, Any] = self.state["buffer"] if self.dealt is None else self.dealt.state
        return buffer

    @property
    def waiting(self) -> list[int]:
        """The simulations of the samples that wait for room in the buffer, in their order."""
        ids: list[int] = self.buffer["simulation_ids"][self.buffer["backlog"]].tolist()
        return ids

    def into_buffer(self, buffer: Buffer) -> None:
        """Fill a new buffer, whose types are known unless nothing was ever received."""
        for rank, part in enumerate(self.parts):
            for rows, values in part.rows("buffer"):
                here, there = self._places(rank, rows)
                for name in buffer.slots.arrays:
                    buffer.slots.set_values(name, there, values[name] if self.is_own else values[name][here])
        for part in self.parts:
            part.into_statics(buffer.slots.statics, self._with_samples)
        buffer.load(self.buffer)

    @property
    def _with_samples(self) -> set[int] | None:
        """The simulations that have samples here, or are held out, on any rank; None: all that this rank had.

        The others run, and their clients send what they share again.
        """
        if self.is_own:
            return None
        held_out = [part.state["held_out"]["simulation_ids"] for part in self.parts]
        return set(np.concatenate([self.buffer["simulation_ids"], *held_out]).tolist())

    def into_store(self, store: ValidationStore, rank: int, num_ranks: int) -> None:
        """Fill a new validation store with this rank's rows: all of its own part, or a share of all parts.

        Which simulations are complete, the ranks have to agree on.
        """
        for part in self.parts:
            state, fields = part.state["held_out"], part.held_out()
            rows = held_out_rows(part, rank, num_ranks, is_own=self.is_own, whole_simulations=self.whole_simulations)
            store.load(
                {
                    "simulation_ids": state["simulation_ids"][rows],
                    "time_steps": state["time_steps"][rows],
                    "present": {name: present[rows] for name, present in state["present"].items()},
                    "complete": [],
                },
                {name: array[rows] for name, array in fields.items()},
            )

    def recorded(self, rank: int) -> dict[int, int | None]:
        """The place up to which the checkpoint has the record of each rank whose part was read, None for none.

        These are all ranks that saved one, or, where each takes back its own, this rank alone.
        """
        positions = [part.state["reception"]["record"] for part in self.parts]
        return {rank: positions[0]} if self.is_own else dict(enumerate(positions))

    def complete(self, rank: int) -> list[dict[int, int | None]]:
        """For each part that this rank speaks for, the simulations whose share it has whole, with their steps."""
        if self.is_own or rank == 0:
            return [_complete(part.state) for part in self.parts]
        return []

    def _places(self, rank: int, rows: range) -> tuple[NDArray[np.intp] | slice, NDArray[np.intp] | slice]:
        """The rows of a part that come to this rank, and the rows that they become here."""
        if self.dealt is None:
            return slice(None), slice(rows.start, rows.stop)
        theirs = self.dealt.rows
        chosen = (self.dealt.ranks == rank) & (theirs >= rows.start) & (theirs < rows.stop)
        return theirs[chosen] - rows.start, np.flatnonzero(chosen)


def restore_rank(
    folder: Path,
    *,
    incarnation: int,
    num_saved: int,
    rank: int,
    dealing: Dealing,
    num_held_out: int,
    policy: type[Policy],
    seed: Sequence[int],
    windows: WindowShape | None = None,
) -> RankRestore:
    """Read what a rank of `dealing` takes back from a checkpoint of an `incarnation` of `num_saved` ranks.

    The first `num_held_out` simulations are not trained on. Where parts are dealt out again, the class `policy` of the
    buffer deals, and `seed`, with the rank, begins the buffer's random stream anew. `windows` are the samples, if these
    are not single time steps.

    Raises:
        DamagedCheckpoint: a file cannot be what was saved.
    """
    num_ranks = dealing.num_ranks
    if num_saved == num_ranks:
        own = SavedRank(folder, rank)
        return RankRestore(incarnation=incarnation, parts=[own], state=own.state, dealt=None)
    parts = [SavedRank(folder, each) for each in range(num_saved)]
    states = [part.state for part in parts]
    ledgers = [state["reception"]["intake"]["ledger"] for state in states]
    dealt = redeal(
        [state["buffer"] for state in states], policy=policy, seeds=[(*seed, each) for each in range(num_ranks)]
    )
    trained_on = [
        _num_accepted(redealt(ledgers, each, dealing), num_held_out, windows, dealt[each].state)
        - _num_left(dealt[each].state, windows)
        for each in range(num_ranks)
    ]
    state = _dealt_out(states, redealt(ledgers, rank, dealing), is_first=rank == 0)
    # A rank accounts for what its ledger has accepted, wherever that was drawn; rank 0 for what does not add up.
    num_drawn = sum(state["num_drawn"] for state in states)
    state["num_drawn"] = trained_on[rank] if rank else num_drawn - sum(trained_on[1:])
    return RankRestore(
        incarnation=incarnation, parts=parts, state=state, dealt=dealt[rank], whole_simulations=windows is not None
    )


def is_of_replay(folder: Path) -> bool:
    """Whether a checkpoint was saved while a record was replayed."""
    return REPLAY in SavedRank(folder, 0).state["reception"]


def finished_simulations(complete: Sequence[Mapping[int, int | None]]) -> dict[int, int | None]:
    """The simulations that are complete on every rank, with the number of their steps, if anybody knows it."""
    first, *others = complete
    everywhere = [simulation for simulation in first if all(simulation in other for other in others)]
    return {it: next((each[it] for each in complete if each[it] is not None), None) for it in everywhere}


def _complete(state: Mapping[str, Any]) -> dict[int, int | None]:
    ledger = state["reception"]["intake"]["ledger"]
    return {simulation: it.total for simulation, it in saved_entries(ledger) if it.complete}


def _num_accepted(
    ledger: Mapping[str, Any], num_held_out: int, windows: WindowShape | None, buffer: Mapping[str, Any]
) -> int:
    """The samples of all accepted steps in a ledger; of the first `num_held_out` simulations there are none."""
    entries = [it for simulation, it in saved_entries(ledger) if simulation >= num_held_out]
    if windows is None:
        return sum(it.num_accepted for it in entries)
    accepted = [np.setdiff1d(_indices(it.settled), _indices(it.rejected)) for it in entries]
    num_late = int(buffer[WINDOWS]["num_late"][:, 1].sum())
    return sum(map(windows.num_among, accepted)) - num_late


def _num_left(buffer: Mapping[str, Any], windows: WindowShape | None) -> int:
    """The samples in a buffer that were never drawn."""
    seen, slots = buffer["seen"], buffer["policy"]["slots"]
    waiting = slots if windows is not None else np.concatenate([slots, buffer["backlog"]])
    num_unseen = int(np.count_nonzero(seen[waiting] == 0))
    return num_unseen if windows is None else num_unseen + num_windows_waiting(dict(buffer), windows)


def _indices(packed: bytes) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little"))


def held_out_rows(
    part: SavedRank, rank: int, num_ranks: int, *, is_own: bool, whole_simulations: bool
) -> slice | NDArray[np.intp]:
    """The held-out rows of a part that come to a rank: all of its own, or rows or simulations at equal distances."""
    if is_own:
        return slice(None)
    if not whole_simulations:
        return slice(rank, None, num_ranks)
    return np.flatnonzero(part.state["held_out"]["simulation_ids"] % num_ranks == rank)


def _dealt_out(states: Sequence[Mapping[str, Any]], ledger: dict[str, Any], *, is_first: bool) -> dict[str, Any]:
    """The state of a rank among others than saved it: its own ledger, sums on rank 0, parameters everywhere."""
    receptions = [state["reception"] for state in states]
    intakes = [reception["intake"] for reception in receptions]
    phases_s = {name: seconds for state in states for name, seconds in state["phases_s"].items()}
    return {
        "reception": {
            "intake": {
                "ledger": ledger,
                "dtypes": {name: dtype for intake in intakes for name, dtype in intake["dtypes"].items()},
                "refused": _sum([intake["refused"] for intake in intakes]) if is_first else {},
            },
            "parameters": _parameters(receptions),
            "withdrawn": sum(reception["withdrawn"] for reception in receptions) if is_first else 0,
            "receive_s": max(reception["receive_s"] for reception in receptions),
        },
        "scores": [one for state in states for one in state["scores"]] if is_first else [],
        "phases_s": phases_s,
        "num_dropped": sum(state["num_dropped"] for state in states) if is_first else 0,
        "prefetch_s": max(state["prefetch_s"] for state in states),
        "normalization": [one for state in states for one in state["normalization"]] if is_first else [],
    }


def _parameters(receptions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    of_all = SimulationParameters()
    for reception in receptions:
        of_all.load_state_dict(reception["parameters"])
    return of_all.state_dict()


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = {name for of_rank in counts for name in of_rank}
    return {name: sum(of_rank.get(name, 0) for of_rank in counts) for name in names}
