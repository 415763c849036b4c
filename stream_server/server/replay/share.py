"""The share of one rank in a replay: the samples that it is given of a record, counted before the first is read."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from stream_server.buffers import Buffer
from stream_server.buffers.statics import StaticFields
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.messages.routing import Dealing
from stream_server.server.intake.account import RankAccount, Received, WindowCounts
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.replay.dealing import Places, RecordCounts, ReplayDealing, in_turn, is_sample
from stream_server.server.replay.file_recording import FileRecording, files_in
from stream_server.server.replay.record_format import SAMPLES, Heads
from stream_server.server.replay.record_reader import RecordEntry, Recording, is_record, kept_dtypes
from stream_server.server.run import build
from stream_server.wording import counted

T = TypeVar("T")


class ReplayShare:
    """An open record that fits a study, and this rank's share of it. `counts` are of the whole record.

    It is open until the `stack` ends. Creating it is collective: each rank counts some of the files.

    Raises:
        ConfigError: the record does not fit the study, or is damaged; the same on all ranks.
    """

    def __init__(
        self, config: StudyConfig, ranks: Ranks, folder: Path, parameters: tuple[str, ...], stack: ExitStack
    ) -> None:
        def look() -> Recording | FileRecording:
            recording = open_recording(config, folder)
            stack.callback(recording.close)
            recording.check(config, parameters)
            return recording

        self._config = config
        self._rank = ranks.rank
        self._windows = build.window_shape(config)
        self.time_steps = build.time_steps(config)
        self._recording = on_all_ranks(ranks, look)
        self._dealing = ReplayDealing(
            num_recorded=len(self._recording.ranks),
            dealing=Dealing(build.routing(config), ranks.size),
            time_steps=self.time_steps,
            keeps_ranks=config.window is None,
        )
        self.counts = _count(ranks, self._recording, self._dealing, config)

    @property
    def warnings(self) -> list[str]:
        """The simulations, time steps and windows that study.json asks for and that are not there."""
        found = list(self._recording.warnings)
        if incomplete := [i for i in self._held_out if i not in self.counts.finished]:
            named = ", ".join(map(str, incomplete))
            found.append(f"not all is there of the held-out simulations {named}: they are left out of the validation")
        parted = filter(self._is_trained, self.counts.trajectory_ends.keys() & self.counts.labels.keys())
        num_late = {it: windows.late for it in sorted(parted) if (windows := self._window_counts(it))}
        if num := sum(num_late.values()):
            named = ", ".join(str(simulation) for simulation, num in num_late.items() if num)
            found.append(
                f"{counted(num, 'window')} left out of the training, with steps of two attempts that computed "
                f"something else, of the simulations {named}"
            )
        return found

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The types in which the fields are kept."""
        return kept_dtypes(self._config, self._recording.recorded_dtypes)

    @property
    def account(self) -> RankAccount:
        """The account of this rank, by which all that was recorded counts as accepted where it is given."""
        received = {simulation: self._received(simulation, num) for simulation, num in self.num_steps.items()}
        withdrawn = [it for i, it in received.items() if i in self.counts.withdrawn and not self._is_held_out(i)]
        return RankAccount(intake=received, withdrawn=sum(it.num_samples for it in withdrawn))

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
        return Received(accepted=num, windows=self._window_counts(simulation))

    def _window_counts(self, simulation: int) -> WindowCounts | None:
        """The windows of a simulation, all of which are on one rank; none has steps of two trajectories."""
        if self._windows is None:
            return None
        steps = self.time_steps.index(np.sort(self.counts.labels[simulation]))
        num = self._windows.num_among(steps)
        ends = list(map(self.time_steps.index, self.trajectory_ends(simulation)))
        parts = np.split(steps, np.searchsorted(steps, ends, side="right"))
        return WindowCounts(of_accepted=num, of_settled=num, late=num - sum(map(self._windows.num_among, parts)))

    def trajectory_ends(self, simulation: int) -> list[int]:
        """The time steps behind which another trajectory of a simulation begins; none of one that is held out."""
        return [] if self._is_held_out(simulation) else sorted(self.counts.trajectory_ends.get(simulation, ()))

    @property
    def num_samples(self) -> int:
        return self.samples_of_ranks[self._rank]

    @property
    def num_entries(self) -> int:
        return sum(map(len, self._recording.ranks)) if self._windows is None else len(self._turns[1])

    def samples(self, position: int = 0) -> Iterator[RecordEntry | None]:
        """The samples to train on, and between them the ends of simulations, from a position on.

        A position is a number of entries, of `num_entries`; for one that is passed over, unread, there is None. Nothing
        is read ahead: what comes next is a function of the position alone.
        """
        if self._windows is None:
            yield from self._entries(list(filter(self._is_trained, self.counts.simulations)), position)
            return
        heads, places = self._turns
        is_withdrawn = is_sample(heads, np.array(list(self.counts.withdrawn), np.int64))
        for (file, number), withdrawn in zip(places[position:], is_withdrawn[position:], strict=True):
            yield None if withdrawn else self._recording.ranks[file].read(int(number))

    def put_statics(self, simulation: int, statics: StaticFields) -> None:
        """Read the fields that are sent once, unless those of this simulation are there.

        Raises:
            DamagedRecord: they are not as they were written.
        """
        if statics.shapes and simulation not in statics:
            file, number = self.counts.statics[simulation]
            found = self._recording.ranks[file].read(number).fields
            statics.put(simulation, {name: found[name].astype(dtype) for name, dtype in statics.dtypes.items()})

    def read_held_out(self, store: ValidationStore, buffer: Buffer) -> None:
        """Put this rank's held-out samples into a store, by way of a slot, and beside them what they share."""
        if not any(map(self._is_held_out, self.counts.simulations)):
            return
        for entry in self._entries(self._held_out):
            if entry is not None and entry.kind in SAMPLES:
                self.put_statics(entry.simulation, buffer.slots.statics)
                [slot] = buffer.claim(1)
                buffer.slots.fill(slot, entry.simulation, entry.time_step, entry.fields)
                store.keep(buffer.slots, slot)
                buffer.discard([slot])
        for simulation in self._held_out:
            if simulation in self.counts.finished:
                store.complete(simulation)

    @cached_property
    def _turns(self) -> tuple[Heads, Places]:
        # Those that are withdrawn have their turns too: one that was withdrawn late changes no order.
        mine = [i for i in self.num_steps if not self._is_held_out(i)]
        at_once = self._recording.simulations_at_once(self._config)
        return in_turn(self._recording.ranks, mine, self._dealing, at_once)

    def _entries(self, simulations: Collection[int], position: int = 0) -> Iterator[RecordEntry | None]:
        files = self._recording.ranks
        for place in self._dealing.places(self._rank, files, simulations, position):
            yield None if place is None else files[place[0]].read(place[1])

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
