"""Parameters that a class suggests, which no restart changes, and its results, which go back with the checkpoint."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import numpy as np

from stream_server.config import StudyConfig
from stream_server.config.loading import load_plain
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.progress.batches import Batch, StepOutcome, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.steering import suggester as steering
from stream_server.server.steering.feedback import Feedback
from stream_server.server.steering.suggester import Suggester
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.faults.disk.scenarios.checkpoints import STORE, Good, Started, restart, save_parts
from tests.faults.disk.scenarios.scenario import Tell
from tests.support.checkpoint_stores import part, start
from tests.support.generators import GeneratorHere

RUN = "run"
RESULTS = "study.state"
LOOKAHEAD = 2
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parameters are wanted for so many simulations."""

    num: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """These parameters were told: what the simulations from the first on have, as far as they go."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """A server that has parameters suggested and saves checkpoints, one after the other."""

    name: str = "suggestions and their results"

    def prepare(self, folder: Path) -> Sequence[object]:
        (folder / STORE).mkdir(parents=True)
        start(folder / STORE)
        told: list[object] = []
        with server(folder, Good(0, 0)) as it:
            it.go_on(1, told.append)
        return [Started(1), Good(1, 1), *told]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        with server(folder, Good(1, 1)) as it:
            for _ in range(2):
                it.go_on(1, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        good, incarnation = restart(folder / STORE, told, tell)
        with server(folder, good) as it:
            values, known = it.values, _known(told)
            assert values[: len(known)] == known, f"{known} was told, and {values} is there"
            assert len(values) <= max(fact.num for fact in told if isinstance(fact, Wanted))
            assert len(set(values)) == len(values), f"{values} has something twice"
            tell(Delivered(values))
            it.go_on(incarnation, tell)
            assert len(set(it.values)) == len(it.values)


class SteeredServer:
    """A server that steers: checkpoint n has n losses of simulation 0, n - 1 of simulation 1, and so on.

    The class hears of them at every other checkpoint; in between they are with the rank.
    """

    def __init__(self, folder: Path, good: Good, suggester: Suggester) -> None:
        self._store = folder / STORE
        self._number = good.number
        self._suggester = suggester
        self._delivered: SimpleQueue[Mapping[int, Any]] = SimpleQueue()
        self._results: dict[int, Mapping[str, float]] = {}
        self._tell: Tell = lambda fact: None
        self._progress = Progress(1)
        self._feedback = Feedback(
            SoloRanks(), schedule=Schedule(every=1), progress=self._progress, ingest=self._ingest, failures=list
        )
        if good.number:
            state = from_bytes((CheckpointFolder(self._store).path(good.number) / RESULTS).read_bytes())
            self._feedback.load_state_dict(state["results"])
            self._feedback.scores.load_state_dict(state["scores"])
        suggester.start(self._deliver)

    @property
    def values(self) -> tuple[float, ...]:
        """The parameter of each simulation."""
        return tuple(it.values[0] for it in self._suggester.suggestions)

    def go_on(self, incarnation: int, tell: Tell) -> None:
        """Want more parameters, train, tell the class, and save."""
        self._tell, self._number = tell, self._number + 1
        num = len(self.values) + LOOKAHEAD
        tell(Wanted(num))
        self._suggester.want(num)
        delivered = self._delivered.get(timeout=DEADLINE_S)
        assert delivered.keys() == {*range(num - LOOKAHEAD, num)}
        simulations = np.arange(self._number)
        losses = [loss(simulation, self._number) for simulation in simulations.tolist()]
        batch = Batch(
            data=None,
            size=len(simulations),
            keys=np.stack([simulations, np.full(len(simulations), self._number)]),
            is_first=np.ones(len(simulations), bool),
        )
        self._feedback.scores.note(batch, StepOutcome(loss=0.0, sample_losses=np.array(losses)))
        if self._number % 2 == 0:
            self._progress.count_batch(UnionBatch(own=batch, sizes=(batch.size,)))
            self._feedback.on_round(None)
            self._check_results()
        state = {"results": self._feedback.state_dict(), "scores": self._feedback.scores.state_dict()}
        parts: list[PendingFile] = [part(RESULTS, to_bytes(state))]
        save_parts(self._store, self._number, incarnation, parts, tell)

    def _check_results(self) -> None:
        for simulation in range(self._number):
            losses = [loss(simulation, number) for number in range(simulation + 1, self._number + 1)]
            found = self._results[simulation]
            assert found["num_losses"] == len(losses), (simulation, self._number, found)
            assert np.isclose(found["first_loss"], np.mean(losses)), (simulation, self._number, found)

    def _deliver(self, parameters: Mapping[int, dict[str, float]]) -> None:
        values = tuple(it["phase"] for it in parameters.values())
        self._tell(Delivered((*self.values[: min(parameters)], *values)))
        self._delivered.put(parameters)

    def _ingest(self, results: Mapping[int, Mapping[str, float]]) -> None:
        self._results |= results
        values = self.values
        self._suggester.ingest({it: {**result, "phase": values[it]} for it, result in results.items()})


@contextmanager
def server(folder: Path, good: Good) -> Iterator[SteeredServer]:
    """One that goes on from a checkpoint, or begins."""
    with (
        mock.patch.object(steering, "GeneratorProcess", GeneratorHere),
        Suggester(_config(), folder / RUN, parameters_csv=Path(os.devnull)) as suggester,
    ):
        yield SteeredServer(folder, good, suggester)


def loss(simulation: int, number: int) -> float:
    """The loss of a simulation in the batch before a checkpoint."""
    return 10.0 * simulation + number


@cache
def _config() -> StudyConfig:
    sampler = {"class": "tests.support.generators:Wandering", "lookahead": LOOKAHEAD}
    study = {
        "study": {"simulations": 100, "time_steps": 10, "fields": {"u": [2]}},
        "parameters": {"bounds": {"phase": [0, 1]}, "sampler": sampler},
        "server": {"class": "stream_server:StreamServer"},
        "buffer": {"policy": "fifo", "capacity": 100},
        "training": {"batch_size": 4},
    }
    return load_plain(study, Path(__file__).parent)


def _known(told: Sequence[object]) -> tuple[float, ...]:
    return next((fact.values for fact in reversed(told) if isinstance(fact, Delivered)), ())
