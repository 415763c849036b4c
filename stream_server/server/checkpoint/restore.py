"""Restore: the state that a rank takes back from a checkpoint, on as many ranks as saved it or on others.

Why: docs/decisions/0042-restore.md
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Policy
from stream_server.buffers.redeal import Dealt, redeal
from stream_server.buffers.statics import StaticFields
from stream_server.errors import DamagedCheckpoint
from stream_server.messages.routing import Dealing
from stream_server.ragged import row_of
from stream_server.server.checkpoint.folder import RANK, ROWS, rank_folder
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.storage.plain_state import damage_in, read_state
from stream_server.storage.sample_file import SampleLayout, read_rows
from stream_server.storage.typed import quoted

Arrays = dict[str, NDArray[Any]]


class Part(Protocol):
    """A part of a rank's state, which is saved and restored by the class that has it."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> None: ...


@runtime_checkable
class RedealtPart(Protocol):
    """A part that can be dealt to another number of ranks."""

    def redealt(self, states: Sequence[Any], rank: int, dealing: Dealing, /) -> Any:
        """The state of a rank of `dealing`, from the states of all ranks that saved; a static method."""
        ...


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

    def into_store(self, store: ValidationStore, rank: int, num_ranks: int, *, by_simulation: bool) -> None:
        """Load the share of a rank of the held-out rows: rows or whole simulations at equal distances."""
        saved = self.state["held_out"]
        simulations, time_steps = saved["simulation_ids"].tolist(), saved["time_steps"].tolist()
        for rows, values in self.rows("held_out"):
            for place, row in enumerate(rows):
                if (simulations[row] if by_simulation else row) % num_ranks == rank:
                    fields = {name: row_of(array, place) for name, array in values.items()}
                    present = {name: bool(is_present[row]) for name, is_present in saved["present"].items()}
                    store.add(simulations[row], time_steps[row], fields, present)

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
    """The state that a `rank` of `dealing` takes back: its own as it was saved, or its share of that of other ranks.

    `saved` are the ranks that it is read from, itself or all. `dealt` is the share of their buffers, None where the
    rank has its own. `incarnation` is the one that saved it. `whole_simulations`: the steps of a held-out simulation
    belong together.
    """

    incarnation: int
    rank: int
    dealing: Dealing
    saved: Sequence[SavedRank]
    dealt: Dealt | None
    whole_simulations: bool = False

    @property
    def is_own(self) -> bool:
        """Whether this rank goes on as it was, to the last bit."""
        return self.dealt is None

    def load(self, parts: Mapping[str, Part], *, optional: Collection[str] = ()) -> None:
        """Give each part its state, one after the other. One that is `optional` starts over if it was not saved.

        Raises:
            DamagedCheckpoint: a part was not saved, or its state cannot be what was saved.
        """
        for name, part in parts.items():
            states = [saved.state[name] for saved in self.saved if name in saved.state]
            if not states and name in optional:
                continue
            if len(states) < len(self.saved):
                raise DamagedCheckpoint(f"{RANK} lacks {quoted(name)}")
            with damage_in(name):
                if self.is_own:
                    part.load_state_dict(states[0])
                else:
                    assert isinstance(part, RedealtPart), f"{name} has no share for other ranks"
                    part.load_state_dict(part.redealt(states, self.rank, self.dealing))

    @property
    def buffer(self) -> dict[str, Any]:
        """The state of the buffer, but for the samples' values."""
        buffer: dict[str, Any] = self.saved[0].state["buffer"] if self.dealt is None else self.dealt.state
        return buffer

    def bound_draws(self, policy: Policy, before: float | None, now: float) -> None:
        """Let the state for `policy` go on with another `training.draws_per_sample`."""
        self.buffer["policy"] = policy.with_other_bound(self.buffer["policy"], before, now)

    @property
    def waiting(self) -> list[int]:
        """The simulations of the samples that wait for room in the buffer, in their order."""
        ids: list[int] = self.buffer["simulation_ids"][self.buffer["backlog"]].tolist()
        return ids

    def into_buffer(self, buffer: Buffer) -> None:
        """Fill a new buffer, whose types are known unless nothing was ever received."""
        for rank, saved in enumerate(self.saved):
            for rows, values in saved.rows("buffer"):
                here, there = self._places(rank, rows)
                for name in buffer.slots.arrays:
                    buffer.slots.set_values(name, there, values[name] if self.is_own else values[name][here])
        for saved in self.saved:
            saved.into_statics(buffer.slots.statics, self._with_samples)
        buffer.load(self.buffer)

    @property
    def _with_samples(self) -> set[int] | None:
        """The simulations that have samples here, or are held out, on any rank; None: all that this rank had.

        The others run, and their clients send what they share again.
        """
        if self.is_own:
            return None
        held_out = [saved.state["held_out"]["simulation_ids"] for saved in self.saved]
        return set(np.concatenate([self.buffer["simulation_ids"], *held_out]).tolist())

    def into_store(self, store: ValidationStore) -> None:
        """Fill a new validation store with this rank's rows: all of its own part, or a share of all parts.

        Which simulations are complete, the ranks have to agree on.
        """
        share = (0, 1) if self.is_own else (self.rank, self.dealing.num_ranks)
        for saved in self.saved:
            saved.into_store(store, *share, by_simulation=self.whole_simulations)

    def recorded(self) -> dict[int, int | None]:
        """The place up to which the checkpoint has the record of each rank whose part was read, None for none.

        These are all ranks that saved one, or, where each takes back its own, this rank alone.
        """
        positions = [saved.state["record"] for saved in self.saved]
        return {self.rank: positions[0]} if self.is_own else dict(enumerate(positions))

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
    policy: type[Policy],
    seed: Sequence[int],
    whole_simulations: bool = False,
) -> RankRestore:
    """Read what a rank of `dealing` takes back from a checkpoint of an `incarnation` of `num_saved` ranks.

    Where parts are dealt out again, the class `policy` of the buffer deals, and `seed`, with the rank, begins the
    buffer's random stream again.

    Raises:
        DamagedCheckpoint: a file cannot be what was saved.
    """
    num_ranks, dealt = dealing.num_ranks, None
    saved = [SavedRank(folder, each) for each in ([rank] if num_saved == num_ranks else range(num_saved))]
    states = [rank.state["buffer"] for rank in saved]
    if num_saved != num_ranks:
        dealt = redeal(states, policy=policy, seeds=[(*seed, each) for each in range(num_ranks)])[rank]
    return RankRestore(
        incarnation=incarnation,
        rank=rank,
        dealing=dealing,
        saved=saved,
        dealt=dealt,
        whole_simulations=whole_simulations,
    )
