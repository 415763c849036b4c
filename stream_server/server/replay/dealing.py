"""The order of a replay: which rank is given which recorded sample, and when. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import TimeSteps
from stream_server.messages.routing import Dealing
from stream_server.server.replay.file_recording import FilesRecord
from stream_server.server.replay.record_format import HEAD, SAMPLES, EntryKind, Heads
from stream_server.server.replay.record_reader import RankRecord

Place = tuple[int, int]
Places = npt.NDArray[np.int64]
"""Entries in an order, shape (n, 2): of each its file and number."""

_OVER = (-1, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayDealing:
    """Deals the files of `num_recorded` ranks to the ranks of `dealing`.

    With as many ranks as files, each rank is given one file, if it `keeps_ranks`. Otherwise each rank goes through all
    files at once, in turn an entry of each, and takes what belongs to it by the routing.
    """

    num_recorded: int
    dealing: Dealing
    time_steps: TimeSteps
    keeps_ranks: bool = True

    @property
    def is_same(self) -> bool:
        """Every rank of the replay has a file of its own."""
        return self.keeps_ranks and self.dealing.num_ranks == self.num_recorded

    def owners(self, file: int, heads: Heads) -> npt.NDArray[np.int64]:
        """The ranks that are given these samples, recorded in `file`."""
        if self.is_same:
            return np.full(len(heads), file)
        server_rank: Callable[[Any, Any], Any] = self.dealing.server_rank
        return np.asarray(server_rank(heads["simulation"], self.time_steps.index(heads["time_step"])))

    def places(
        self, rank: int, files: Sequence[RankRecord | FilesRecord], wanted: Collection[int], position: int = 0
    ) -> Iterator[Place | None]:
        """The entries that a rank goes through: samples of `wanted` simulations, and the ends of any.

        None stands for every other entry. The first `position` entries are left out.
        """
        chosen = np.array(list(wanted), np.int64)
        mine = range(rank, rank + 1) if self.is_same else range(self.num_recorded)

        def num_before(number: int) -> int:
            return sum(min(len(files[file]), number) for file in mine)

        def places_in(file: int) -> Iterator[Place | None]:
            for begin, heads in files[file].heads():
                first = max(num_turns - begin, 0)
                if first < len(heads):
                    is_mine = is_sample(heads, chosen) & (self.owners(file, heads) == rank)
                    is_mine |= heads["kind"] == EntryKind.FINISHED
                    for number, is_read in enumerate(is_mine[first:].tolist(), begin + first):
                        yield (file, number) if is_read else None

        turns = range(max((len(files[file]) for file in mine), default=0) + 1)
        num_turns = bisect_right(turns, position, key=num_before) - 1
        found = zip_longest(*map(places_in, mine), fillvalue=_OVER)
        entries = (it for turn in found for it in turn if it is not _OVER)
        return islice(entries, position - num_before(num_turns), None)


@dataclass(kw_only=True, slots=True)
class RecordCounts:
    """The samples and simulations in some files of a record.

    Attributes:
        samples: for each rank of the replay, how many samples of which simulation it is given.
        parameters: those of the simulations.
        statics: for each simulation the file and number of the entry with its static fields.
        ended: for each file, the simulations of which it says that all steps have come.
        finished: those of which all files that must say so do.
        withdrawn: those that are not to be trained on.
        labels: for each simulation its time steps, if samples are windows.
        trajectory_ends: for each simulation the time steps behind which those that follow are of another trajectory.
    """

    samples: list[dict[int, int]] = field(default_factory=list)
    parameters: dict[int, list[float]] = field(default_factory=dict)
    statics: dict[int, Place] = field(default_factory=dict)
    ended: dict[int, set[int]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    labels: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    trajectory_ends: dict[int, set[int]] = field(default_factory=dict)

    @property
    def simulations(self) -> list[int]:
        """The simulations of which there is a sample."""
        return sorted({simulation for of_rank in self.samples for simulation in of_rank})

    def num_samples(self, simulation: int) -> int:
        """The number of samples of a simulation on all ranks."""
        return sum(of_rank.get(simulation, 0) for of_rank in self.samples)

    def add(self, record: RankRecord | FilesRecord, begin: int, heads: Heads) -> None:
        """Note what some entries of a file say of simulations, the first of which has the number `begin`.

        Raises:
            DamagedRecord: the parameters are not as they were written.
        """
        for place in np.flatnonzero(heads["kind"] == EntryKind.PARAMETERS).tolist():
            entry = record.read(begin + place)
            self.parameters[entry.simulation] = entry.parameters.tolist()
        for place in np.flatnonzero(heads["kind"] == EntryKind.STATICS).tolist():
            self.statics.setdefault(int(heads["simulation"][place]), (record.rank, begin + place))
        of_ends = heads[heads["kind"] == EntryKind.TRAJECTORY_END]
        for simulation, step in zip(of_ends["simulation"].tolist(), of_ends["time_step"].tolist(), strict=True):
            self.trajectory_ends.setdefault(simulation, set()).add(step)
        self.ended.setdefault(record.rank, set()).update(_simulations(heads, EntryKind.FINISHED))
        self.withdrawn |= _simulations(heads, EntryKind.WITHDRAWN)

    def add_samples(self, file: int, heads: Heads, dealing: ReplayDealing, *, keeps_labels: bool) -> None:
        """Count the samples among some entries of a file."""
        samples, num_ranks = heads[is_sample(heads)], len(self.samples)
        pairs = samples["simulation"] * num_ranks + dealing.owners(file, samples)
        for pair, num in zip(*(it.tolist() for it in np.unique(pairs, return_counts=True)), strict=True):
            simulation, owner = divmod(pair, num_ranks)
            self.samples[owner][simulation] = self.samples[owner].get(simulation, 0) + num
        for simulation in np.unique(samples["simulation"]).tolist() if keeps_labels else ():
            self._add_labels(simulation, samples["time_step"][samples["simulation"] == simulation])

    @classmethod
    def sum(cls, counts: Sequence[Self], files: Sequence[int]) -> Self:
        """The counts of all files; all these `files` must say that a simulation is finished.

        A rank says so behind the last sample that it has of a simulation. What only some ranks say proves nothing: of a
        study that was killed, the samples of the others may not have been written yet.
        """
        total = cls(samples=[_sum(of_rank) for of_rank in zip(*(it.samples for it in counts), strict=True)])
        for it in counts:
            total.parameters |= it.parameters
            total.statics = it.statics | total.statics
            total.ended |= it.ended
            total.withdrawn |= it.withdrawn
            for simulation, labels in it.labels.items():
                total._add_labels(simulation, labels)
            for simulation, ends in it.trajectory_ends.items():
                total.trajectory_ends.setdefault(simulation, set()).update(ends)
        total.finished = set.intersection(*(total.ended.get(file, set()) for file in files))
        return total

    def _add_labels(self, simulation: int, labels: npt.NDArray[np.int64]) -> None:
        before = self.labels.get(simulation, np.zeros(0, np.int64))
        self.labels[simulation] = np.concatenate([before, labels])


def is_sample(heads: Heads, simulations: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.bool_]:
    """Which entries are samples, of these simulations or of any."""
    found: npt.NDArray[np.bool_] = np.isin(heads["kind"], SAMPLES)
    return found if simulations is None else found & np.isin(heads["simulation"], simulations)


def find_entries(
    files: Sequence[RankRecord | FilesRecord],
    is_wanted: Callable[[Heads], npt.NDArray[np.bool_]],
    counts: RecordCounts | None = None,
) -> tuple[Heads, Places]:
    """The heads of the entries that are wanted, and their places, file by file; `counts` note what all entries say."""
    found, places = [np.zeros(0, HEAD)], [np.zeros((0, 2), np.int64)]
    for file, record in enumerate(files):
        for begin, heads in record.heads():
            if counts is not None:
                counts.add(record, begin, heads)
            numbers = np.flatnonzero(is_wanted(heads))
            found.append(heads[numbers])
            places.append(np.column_stack([np.full(len(numbers), file), begin + numbers]))
    return np.concatenate(found), np.concatenate(places)


def in_turn(
    files: Sequence[RankRecord | FilesRecord], mine: Collection[int], dealing: ReplayDealing, at_once: int
) -> tuple[Heads, Places]:
    """The heads and places of all entries that a rank goes through where samples are windows, in this order.

    The first `at_once` simulations to begin of those that are `mine` give a step each in turn, in the order of time,
    then the next ones. So the steps that wait for others of their windows are no more than in a study in which so many
    simulations run and send in order, whatever ran at once when they were recorded, and whichever rank was ahead. The
    end of a simulation comes behind its steps, the ends of all others are last.
    """
    chosen = np.array(list(mine), np.int64)
    heads, places = find_entries(files, lambda it: is_sample(it, chosen) | (it["kind"] == EntryKind.FINISHED))
    as_recorded = np.lexsort(places.T)
    heads, places = heads[as_recorded], places[as_recorded]
    of_step = is_sample(heads)
    simulations, first = np.unique(heads["simulation"][of_step], return_index=True)
    num = len(simulations)
    index = np.searchsorted(simulations, heads["simulation"])
    has_turn = np.append(simulations, -1)[index] == heads["simulation"]
    turn = np.append(np.argsort(np.argsort(first)), num)[np.where(has_turn, index, num)]
    step = np.where(of_step, dealing.time_steps.index(heads["time_step"]), np.iinfo(np.int64).max)
    order = np.lexsort((turn, step, np.where(has_turn, turn // at_once, num)))
    return heads[order], places[order]


def _simulations(heads: Heads, kind: EntryKind) -> set[int]:
    return set(heads["simulation"][heads["kind"] == kind].tolist())


def _sum(counts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for of in counts:
        total.update(of)
    return dict(total)
