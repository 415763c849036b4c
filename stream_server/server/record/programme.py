"""What one rank of a replay is going to be given, known before the first sample is played."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.server.account import Received
from stream_server.server.ranks import Ranks
from stream_server.server.reception_snapshot import ReceptionAccount
from stream_server.server.record.dealing import Dealing
from stream_server.server.record.layout import SAMPLES
from stream_server.server.record.playback import Playback
from stream_server.server.record.recording import Recording
from stream_server.server.record.tally import Tally
from stream_server.server.validation_store import ValidationStore

T = TypeVar("T")


class Programme:
    """A record that fits a study, counted, and this rank's part of it. `tally` is of the whole record."""

    def __init__(self, config: StudyConfig, rank: int, recording: Recording, dealing: Dealing, tally: Tally) -> None:
        self.tally = tally
        self._config = config
        self._rank = rank
        self._recording = recording
        self._dealing = dealing

    @classmethod
    def open(
        cls, config: StudyConfig, ranks: Ranks, folder: Path, parameters: tuple[str, ...], stack: ExitStack
    ) -> Self:
        """Open a record, until `stack` ends; each rank counts some of the files. Collective.

        Raises:
            ConfigError: the record does not fit the study, or is damaged; the same on all ranks.
        """

        def look() -> Recording:
            recording = stack.enter_context(Recording(folder))
            recording.check(config, parameters)
            return recording

        recording = together(ranks, look)
        dealing = recording.dealing(config, ranks.size)
        return cls(config, ranks.rank, recording, dealing, _count(ranks, recording, dealing))

    @property
    def dtypes(self) -> dict[str, npt.DTypeLike]:
        """In which types the fields are kept."""
        return self._recording.dtypes(self._config)

    @property
    def account(self) -> ReceptionAccount:
        """All that was recorded counts as accepted by the rank that is given it."""
        mine = self.tally.samples[self._rank]
        return ReceptionAccount(
            intake={simulation: Received(accepted=num) for simulation, num in mine.items()},
            duplicates=0,
            withdrawn=sum(num for i, num in mine.items() if i in self.tally.withdrawn and not self._is_held_out(i)),
            refused={},
        )

    @property
    def samples_of_ranks(self) -> list[int]:
        """How many samples each rank is given to train on."""
        return [sum(num for i, num in mine.items() if self._is_trained(i)) for mine in self.tally.samples]

    @property
    def num_samples(self) -> int:
        """How many samples this rank is given to train on."""
        return self.samples_of_ranks[self._rank]

    def samples(self) -> Playback:
        """The samples to train on."""
        return self._play(self._is_trained)

    def hold_out(self, store: ValidationStore, dtypes: dict[str, npt.DTypeLike]) -> None:
        """Put what is held out into a store, in the types in which it is kept."""
        held_out = [i for i in self.tally.simulations if self._is_held_out(i) and i not in self.tally.withdrawn]
        if not held_out:
            return
        shapes = {name: spec.shape for name, spec in self._config.study.fields.items()}
        for entry in self._play(lambda simulation: simulation in held_out):
            if entry.kind in SAMPLES:
                fields = {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
                for name, value in entry.fields.items():
                    fields[name][...] = value
                present = {name: name in entry.fields for name in shapes}
                store.add(entry.simulation, entry.time_step, fields, present)
        for simulation in held_out:
            if simulation in self.tally.finished:
                store.complete(simulation)

    def _play(self, wanted: Callable[[int], bool]) -> Playback:
        return Playback(self._recording.files, self._dealing, self._rank, wanted=wanted)

    def _is_held_out(self, simulation: int) -> bool:
        return simulation < self._config.validation.simulations

    def _is_trained(self, simulation: int) -> bool:
        return not self._is_held_out(simulation) and simulation not in self.tally.withdrawn


def together(ranks: Ranks, act: Callable[[], T]) -> T:
    """Do what may fail on one rank; then all ranks raise the same error. Collective.

    Raises:
        ConfigError: `act` raised it, or an OSError, on some rank.
    """
    problem, done = "", []
    try:
        done.append(act())
    except (ConfigError, OSError) as error:
        problem = str(error)
    problems = ranks.broadcast(ranks.gather(problem))
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    return done[0]


def _count(ranks: Ranks, recording: Recording, dealing: Dealing) -> Tally:
    mine = Tally(ranks.size)

    def count() -> None:
        for record in recording.files[ranks.rank :: ranks.size]:
            mine.count(record, dealing)

    together(ranks, count)
    total = Tally.sum(ranks.broadcast(ranks.gather(mine.to_json())), ranks.size)
    unknown = [simulation for simulation in total.simulations if simulation not in total.parameters]
    if unknown:
        raise DamagedRecord(f"{recording.folder}: the parameters of simulation {unknown[0]} were expected in it")
    return total
