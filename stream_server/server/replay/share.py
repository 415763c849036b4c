"""The share of one rank in a replay: the samples that it is given of a record, counted before the first is read."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from stream_server.buffers import WindowShape
from stream_server.buffers.statics import StaticFields
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.messages.routing import Dealing
from stream_server.server.intake.account import RankAccount, Received, WindowCounts
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.replay.dealing import Labels, Place, RecordCounts, ReplayDealing, in_turn, is_sample
from stream_server.server.replay.file_recording import FileRecording, FilesRecord, files_in
from stream_server.server.replay.record_format import SAMPLES
from stream_server.server.replay.record_reader import RankRecord, RecordEntry, Recording, is_record
from stream_server.server.run import build
from stream_server.wording import counted

T = TypeVar("T")


class Playback:
    """Iterates over entries that a `RankRecord` or `FilesRecord` reads.

    `places` gives those of `num_entries` from a position on; an entry whose place is None is passed over unread.
    Nothing is read ahead: what comes next is a function of `position` alone.
    """

    def __init__(
        self,
        files: Sequence[RankRecord | FilesRecord],
        places: Callable[[int], Iterator[Place | None]],
        *,
        num_entries: int,
    ) -> None:
        self._files = files
        self._places_from = places
        self.num_entries = num_entries
        self.seek(0)

    def seek(self, position: int) -> None:
        """Continue at an earlier `position`: the number of entries before it."""
        self.position = position
        self._places = self._places_from(position)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordEntry:
        for place in self._places:
            self.position += 1
            if place is not None:
                file, number = place
                return self._files[file].read(number)
        raise StopIteration


class ReplayShare:
    """An open record that fits a study, and this rank's share of it. `counts` are of the whole record."""

    def __init__(
        self,
        config: StudyConfig,
        rank: int,
        recording: Recording | FileRecording,
        dealing: ReplayDealing,
        counts: RecordCounts,
    ) -> None:
        self.counts = counts
        self._config = config
        self._rank = rank
        self._recording = recording
        self._dealing = dealing
        self._windows = build.window_shape(config)

    @classmethod
    def open(
        cls, config: StudyConfig, ranks: Ranks, folder: Path, parameters: tuple[str, ...], stack: ExitStack
    ) -> Self:
        """Open a record, until `stack` ends; each rank counts some of the files. Collective.

        Raises:
            ConfigError: the record does not fit the study, or is damaged; the same on all ranks.
        """

        def look() -> Recording | FileRecording:
            recording = open_recording(config, folder)
            stack.callback(recording.close)
            recording.check(config, parameters)
            return recording

        recording = on_all_ranks(ranks, look)
        dealing = ReplayDealing(
            num_recorded=len(recording.ranks),
            dealing=Dealing(build.routing(config), ranks.size),
            time_steps=build.time_steps(config),
            keeps_ranks=config.window is None,
        )
        return cls(config, ranks.rank, recording, dealing, _count(ranks, recording, dealing, config))

    @property
    def warnings(self) -> list[str]:
        """The simulations, time steps and windows that study.json asks for and that are not there."""
        found = list(self._recording.warnings)
        if incomplete := [i for i in self._held_out if i not in self.counts.finished]:
            named = ", ".join(map(str, incomplete))
            found.append(f"not all is there of the held-out simulations {named}: they are left out of the validation")
        if self._windows is not None:
            parted = filter(self._is_trained, self.counts.trajectory_ends.keys() & self.counts.labels.keys())
            num_late = {it: self._window_counts(self._windows, it).late for it in sorted(parted)}
            if num := sum(num_late.values()):
                named = ", ".join(str(simulation) for simulation, num in num_late.items() if num)
                found.append(
                    f"{counted(num, 'window')} left out of the training, with steps of two attempts that computed "
                    f"something else, of the simulations {named}"
                )
        return found

    @property
    def dtypes(self) -> dict[str, npt.DTypeLike]:
        """The types in which the fields are kept."""
        return self._recording.dtypes(self._config)

    @property
    def account(self) -> RankAccount:
        """The account of this rank, by which all that was recorded counts as accepted where it is given."""
        mine = self.counts.samples[self._rank]
        withdrawn = self.counts.withdrawn
        received = {simulation: self._received(simulation, num) for simulation, num in mine.items()}
        return RankAccount(
            intake=received,
            withdrawn=sum(it.num_samples for i, it in received.items() if i in withdrawn and not self._is_held_out(i)),
        )

    @property
    def samples_of_ranks(self) -> list[int]:
        return [
            sum(self._received(i, num).num_samples for i, num in mine.items() if self._is_trained(i))
            for mine in self.counts.samples
        ]

    @property
    def num_steps(self) -> Mapping[int, int]:
        """The number of time steps of each simulation that this rank is given."""
        return self.counts.samples[self._rank]

    def _received(self, simulation: int, num: int) -> Received:
        if self._windows is None:
            return Received(accepted=num)
        return Received(accepted=num, windows=self._window_counts(self._windows, simulation))

    def _window_counts(self, windows: WindowShape, simulation: int) -> WindowCounts:
        """The windows of a simulation, all of which are on one rank; none has steps of two trajectories."""
        steps = self.index(np.sort(self.counts.labels[simulation]))
        num = windows.num_among(steps)
        ends = list(map(self.index, self.trajectory_ends(simulation)))
        parts = np.split(steps, np.searchsorted(steps, ends, side="right"))
        return WindowCounts(of_accepted=num, of_settled=num, late=num - sum(map(windows.num_among, parts)))

    def trajectory_ends(self, simulation: int) -> list[int]:
        """The time steps behind which another trajectory of a simulation begins; none of one that is held out."""
        return [] if self._is_held_out(simulation) else sorted(self.counts.trajectory_ends.get(simulation, ()))

    def index(self, time_step: Labels) -> Labels:
        """The index of a time step, or of several; it counts from 0 whatever the steps are called."""
        return self._dealing.index(time_step)

    @property
    def num_samples(self) -> int:
        return self.samples_of_ranks[self._rank]

    def samples(self) -> Playback:
        """The samples to train on, and between them the ends of simulations."""
        if self._windows is None:
            return self._playback(list(filter(self._is_trained, self.counts.simulations)))
        files, at_once = self._recording.ranks, self._recording.simulations_at_once(self._config)
        # Those that are withdrawn have their turns too: one that was withdrawn late changes no order.
        mine = [i for i in self.num_steps if not self._is_held_out(i)]
        heads, turns = in_turn(files, mine, self._dealing, at_once)
        is_withdrawn = is_sample(heads, np.array(list(self.counts.withdrawn), np.int64))

        def places(position: int) -> Iterator[Place | None]:
            for (file, number), withdrawn in zip(turns[position:], is_withdrawn[position:], strict=True):
                yield None if withdrawn else (int(file), int(number))

        return Playback(files, places, num_entries=len(turns))

    def put_statics(self, simulation: int, statics: StaticFields) -> None:
        """Read the fields that are sent once, unless those of this simulation are there.

        Raises:
            DamagedRecord: they are not as they were written.
        """
        if statics.shapes and simulation not in statics:
            file, number = self.counts.statics[simulation]
            found = self._recording.ranks[file].read(number).fields
            statics.put(simulation, {name: found[name].astype(dtype) for name, dtype in statics.dtypes.items()})

    def read_held_out(self, store: ValidationStore, statics: StaticFields) -> None:
        """Put this rank's held-out samples into a store, and beside them what they share."""
        counts = self.counts
        if not any(map(self._is_held_out, counts.simulations)):
            return
        dtypes = self.dtypes
        specs = self._config.study.step_fields
        for entry in self._playback(self._held_out):
            if entry.kind in SAMPLES:
                fields = {
                    name: np.asarray(entry.fields[name], dtypes[name])
                    if name in entry.fields
                    else np.zeros(spec.smallest_shape, dtypes[name])
                    for name, spec in specs.items()
                }
                present = {name: name in entry.fields for name in specs}
                self.put_statics(entry.simulation, statics)
                store.add(entry.simulation, entry.time_step, fields, present)
        for simulation in self._held_out:
            if simulation in counts.finished:
                store.complete(simulation)

    def _playback(self, simulations: Collection[int]) -> Playback:
        files, dealing, rank = self._recording.ranks, self._dealing, self._rank
        places = partial(dealing.places, rank, files, simulations)
        return Playback(files, places, num_entries=sum(map(len, files)))

    @property
    def _held_out(self) -> list[int]:
        return [i for i in self.counts.simulations if self._is_held_out(i) and i not in self.counts.withdrawn]

    def _is_held_out(self, simulation: int) -> bool:
        return simulation < self._config.validation.simulations

    def _is_trained(self, simulation: int) -> bool:
        return not self._is_held_out(simulation) and simulation not in self.counts.withdrawn


def open_recording(config: StudyConfig, folder: Path) -> Recording | FileRecording:
    """The record of a study, or the files of simulations, that are in a folder or an output folder.

    Raises:
        ConfigError: there is neither, or it cannot be read.
    """
    files = [] if is_record(folder) else files_in(folder)
    return FileRecording(files, config) if files else Recording(folder)


def on_all_ranks(
    ranks: Ranks, act: Callable[[], T], *, failures: tuple[type[Exception], ...] = (ConfigError, OSError)
) -> T:
    """Do what may fail on one rank; then all ranks raise the same error. Collective.

    Raises:
        ConfigError: `act` raised one of these `failures` on some rank.
    """
    problem, done = "", []
    try:
        done.append(act())
    except failures as error:
        problem = str(error)
    problems = ranks.broadcast(ranks.gather(problem))
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    return done[0]


def _count(
    ranks: Ranks, recording: Recording | FileRecording, dealing: ReplayDealing, config: StudyConfig
) -> RecordCounts:
    mine = RecordCounts(samples=[{} for _ in range(ranks.size)])

    def count() -> None:
        for record in recording.ranks[ranks.rank :: ranks.size]:
            for begin, heads in record.heads():
                mine.add(record, begin, heads)
                mine.add_samples(record.rank, heads, dealing, keeps_labels=config.window is not None)

    on_all_ranks(ranks, count)
    gathered = ranks.broadcast(ranks.gather(msgspec.to_builtins(mine, str_keys=True, enc_hook=np.ndarray.tolist)))
    counts = msgspec.convert(gathered, list[RecordCounts], str_keys=True, dec_hook=lambda _, it: np.array(it, np.int64))
    total = RecordCounts.sum(counts, recording.latest)
    expected: dict[str, Collection[int]] = {"parameters": total.parameters}
    if config.study.static_fields:
        expected[f"fields {', '.join(config.study.static_fields)}"] = total.statics
    for what, found in expected.items():
        unknown = [simulation for simulation in total.simulations if simulation not in found]
        if unknown:
            raise DamagedRecord(f"{recording.folder}: the {what} of simulation {unknown[0]} were expected in it")
    return total
