"""The order of a replay: which rank is given which recorded sample, and when. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import Routing, TimeSteps
from stream_server.messages.routing import Dealing
from stream_server.server.replay.file_recording import FilesRecord
from stream_server.server.replay.record_format import HEAD, SAMPLES, EntryKind, Heads
from stream_server.server.replay.record_reader import RankRecord

Place = tuple[int, int]
Turns = npt.NDArray[np.int64]
"""Entries in an order, shape (n, 2): of each its file and number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayDealing:
    """Deals the files of `num_recorded` ranks to the `num_ranks` ranks of a replay.

    With as many ranks as files, each rank is given one file, if it `keeps_ranks`. Otherwise each rank goes through all
    files at once, in turn an entry of each, and takes what belongs to it by this routing.
    """

    num_recorded: int
    num_ranks: int
    routing: Routing
    time_steps: TimeSteps
    keeps_ranks: bool = True

    @property
    def is_same(self) -> bool:
        """Every rank of the replay has a file of its own."""
        return self.keeps_ranks and self.num_ranks == self.num_recorded

    def files(self, rank: int) -> range:
        """The files that a rank goes through."""
        return range(rank, rank + 1) if self.is_same else range(self.num_recorded)

    def owner(self, file: int, simulation: int, index: int) -> int:
        """The rank that is given step `index` of a simulation, recorded in `file`."""
        return file if self.is_same else Dealing(self.routing, self.num_ranks).server_rank(simulation, index)

    def index(self, time_step: int) -> int:
        """The index of a time step, which counts from 0 whatever the steps are called."""
        return (time_step - self.time_steps.first) // self.time_steps.every

    def steps_of(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The indices of time steps."""
        return (labels - self.time_steps.first) // self.time_steps.every

    def places(self, rank: int, lengths: Sequence[int], position: int = 0) -> Iterator[Place]:
        """The entries that a rank goes through, as pairs of file and number.

        `lengths` are those of all files, `position` the number of entries to skip, of all simulations.
        """
        files = self.files(rank)
        for place, number in round_robin([lengths[file] for file in files], position):
            yield files[place], number


class RecordCounts:
    """The samples and simulations in some files of a record.

    Attributes:
        samples: for each rank of the replay, how many samples of which simulation it is given.
        parameters: those of the simulations.
        statics: for each simulation the file and number of the entry with its static fields.
        ended: for each file, the simulations of which it says that all steps have come.
        finished: those of which all files that must say so do.
        withdrawn: those that are not to be trained on.
        labels: for each simulation its time steps, if it `keeps_labels`.
        trajectory_ends: for each simulation the time steps behind which those that follow are of another trajectory.
    """

    def __init__(self, num_ranks: int, *, keeps_labels: bool = False) -> None:
        self.samples: list[Counter[int]] = [Counter() for _ in range(num_ranks)]
        self.parameters: dict[int, npt.NDArray[np.float64]] = {}
        self.statics: dict[int, Place] = {}
        self.ended: dict[int, set[int]] = {}
        self.finished: set[int] = set()
        self.withdrawn: set[int] = set()
        self.labels: dict[int, npt.NDArray[np.int64]] = {}
        self.trajectory_ends: dict[int, set[int]] = {}
        self._keeps_labels = keeps_labels

    def agree(self, files: Sequence[int]) -> None:
        """Set `finished`, once everything was added.

        A rank says so behind the last sample that it has of a simulation. What only some ranks say proves nothing: of a
        study that was killed, the samples of the others may not have been written yet.
        """
        self.finished = set.intersection(*(self.ended.get(file, set()) for file in files))

    @property
    def simulations(self) -> list[int]:
        """The simulations of which there is a sample."""
        return sorted({simulation for of_rank in self.samples for simulation in of_rank})

    def num_samples(self, simulation: int) -> int:
        """The number of samples of a simulation on all ranks."""
        return sum(of_rank[simulation] for of_rank in self.samples)

    def add(self, record: RankRecord | FilesRecord, begin: int, heads: Heads) -> None:
        """Note what some entries of a file say of simulations, the first of which has the number `begin`.

        Raises:
            DamagedRecord: the parameters are not as they were written.
        """
        for place in np.flatnonzero(heads["kind"] == EntryKind.PARAMETERS).tolist():
            entry = record.read(begin + place)
            self.parameters[entry.simulation] = entry.parameters
        for place in np.flatnonzero(heads["kind"] == EntryKind.STATICS).tolist():
            self.statics.setdefault(int(heads["simulation"][place]), (record.rank, begin + place))
        of_ends = heads[heads["kind"] == EntryKind.TRAJECTORY_END]
        for simulation, step in zip(of_ends["simulation"].tolist(), of_ends["time_step"].tolist(), strict=True):
            self.trajectory_ends.setdefault(simulation, set()).add(step)
        self.ended.setdefault(record.rank, set()).update(_simulations(heads, EntryKind.FINISHED))
        self.withdrawn |= _simulations(heads, EntryKind.WITHDRAWN)

    def add_samples(self, file: int, heads: Heads, dealing: ReplayDealing) -> None:
        """Count the samples among some entries of a file."""
        samples = heads[np.isin(heads["kind"], SAMPLES)]
        steps, num = dealing.time_steps, dealing.num_ranks
        # Which rank has a step depends on its index only by the remainder of a division by the number of ranks.
        remainders = (samples["time_step"] - steps.first) // steps.every % num
        pairs, counts = np.unique(samples["simulation"] * num + remainders, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            simulation, remainder = divmod(pair, num)
            self.samples[dealing.owner(file, simulation, remainder)][simulation] += count
        if self._keeps_labels:
            for simulation in np.unique(samples["simulation"]).tolist():
                self._add_labels(simulation, samples["time_step"][samples["simulation"] == simulation])

    def to_json(self) -> dict[str, Any]:
        """Plain values for the other ranks."""
        return {
            "samples": [dict(of_rank) for of_rank in self.samples],
            "parameters": {simulation: values.tolist() for simulation, values in self.parameters.items()},
            "statics": self.statics,
            "ended": {file: sorted(simulations) for file, simulations in self.ended.items()},
            "withdrawn": sorted(self.withdrawn),
            "labels": {simulation: labels.tolist() for simulation, labels in self.labels.items()},
            "trajectory_ends": {simulation: sorted(ends) for simulation, ends in self.trajectory_ends.items()},
        }

    @classmethod
    def sum(cls, counts: Sequence[Mapping[str, Any]], num_ranks: int) -> Self:
        """The counts of all files, from those of each rank as `to_json` gave them."""
        total = cls(num_ranks)
        for plain in counts:
            for mine, samples in zip(total.samples, plain["samples"], strict=True):
                mine.update({int(simulation): num for simulation, num in samples.items()})
            for simulation, values in plain["parameters"].items():
                total.parameters[int(simulation)] = np.array(values, np.float64)
            for simulation, (file, number) in plain["statics"].items():
                total.statics.setdefault(int(simulation), (file, number))
            total.ended.update({int(file): set(simulations) for file, simulations in plain["ended"].items()})
            total.withdrawn.update(plain["withdrawn"])
            for simulation, labels in plain["labels"].items():
                total._add_labels(int(simulation), np.array(labels, np.int64))
            for simulation, ends in plain["trajectory_ends"].items():
                total.trajectory_ends.setdefault(int(simulation), set()).update(ends)
        return total

    def _add_labels(self, simulation: int, labels: npt.NDArray[np.int64]) -> None:
        before = self.labels.get(simulation)
        self.labels[simulation] = labels.astype(np.int64) if before is None else np.concatenate([before, labels])


def in_turn(
    files: Sequence[Iterable[tuple[int, Heads]]], mine: Collection[int], time_steps: TimeSteps, at_once: int
) -> Turns:
    """The order in which a rank goes through the entries of all files where samples are windows.

    The first `at_once` simulations to begin of those that are `mine` give a step each in turn, in the order of time,
    then the next ones. So the steps that wait for others of their windows are no more than in a study in which so many
    simulations run and send in order, whatever ran at once when they were recorded, and whichever rank was ahead. The
    end of a simulation comes behind its steps, the ends of all others are last.

    Args:
        files: of each file the heads of its entries, many at a time, and the number of the first of them.
    """
    found, places = [np.zeros(0, HEAD)], [np.zeros((0, 2), np.int64)]
    for file, blocks in enumerate(files):
        for begin, heads in blocks:
            of_mine = np.isin(heads["kind"], SAMPLES) & np.isin(heads["simulation"], list(mine))
            concerned = np.flatnonzero(of_mine | (heads["kind"] == EntryKind.FINISHED))
            found.append(heads[concerned])
            places.append(np.column_stack([np.full(len(concerned), file), begin + concerned]))
    heads, turns = np.concatenate(found), np.concatenate(places)
    as_recorded = np.lexsort(turns.T)
    heads, turns = heads[as_recorded], turns[as_recorded]
    is_sample = np.isin(heads["kind"], SAMPLES)
    simulations, first = np.unique(heads["simulation"][is_sample], return_index=True)
    num = len(simulations)
    index = np.searchsorted(simulations, heads["simulation"])
    has_turn = np.append(simulations, -1)[index] == heads["simulation"]
    has_turn &= is_sample | (heads["kind"] == EntryKind.FINISHED)
    place = np.append(np.argsort(np.argsort(first)), num)[np.where(has_turn, index, num)]
    step = np.where(is_sample, (heads["time_step"] - time_steps.first) // time_steps.every, np.iinfo(np.int64).max)
    order = np.lexsort((place, step, np.where(has_turn, place // at_once, num)))
    return turns[order]


def round_robin(lengths: Sequence[int], position: int) -> Iterator[Place]:
    """Take in turn an entry of each of these files: pairs of file and number, from `position` on."""
    first = _rounds_before(lengths, position)
    skipped = position - _num_before(lengths, first)
    for number in range(first, max(lengths, default=0)):
        for file, length in enumerate(lengths):
            if number < length:
                if skipped:
                    skipped -= 1
                else:
                    yield file, number


def _num_before(lengths: Sequence[int], number: int) -> int:
    return sum(min(length, number) for length in lengths)


def _rounds_before(lengths: Sequence[int], position: int) -> int:
    """The number of whole rounds before `position`."""
    rounds = range(max(lengths, default=0) + 1)
    return bisect_right(rounds, position, key=lambda number: _num_before(lengths, number)) - 1


def _simulations(heads: Heads, kind: EntryKind) -> set[int]:
    return set(heads["simulation"][heads["kind"] == kind].tolist())
