"""The parameters of the simulations: the design of the ensemble, and their table by id."""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stream_server.config import StudyConfig
from stream_server.config.parameters import ID_COLUMN, ORIGIN_COLUMNS, DesignFile
from stream_server.errors import ConfigError
from stream_server.samplers.generator import PointGenerator
from stream_server.samplers.sequences import GeneratedPoints, Sampler, make_sampler
from stream_server.server.intake.parameters import Origin, SimulationParameters
from stream_server.storage.disk import open_regular
from stream_server.wording import counted

TRAINING_STREAM = 0
VALIDATION_STREAM = 1
ENOUGH_VALUES = 64


class ParameterDesign:
    """Parameters as a function of the study's seed and the simulation's id, in any order of asking.

    Ids 0 … V-1 are the validation simulations, V … V+N-1 the training ones, redraws take the next: the two
    kinds are sampled from streams of their own, so that V does not change the training parameters. A CSV
    file is in the order of ids, as `write_csv` writes it.
    """

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._num_validation = config.validation.simulations
        self._file: DesignFile | None = None
        if config.parameters.file is not None:
            try:
                self._file = DesignFile.read(config.parameters.file)
            except ValueError as error:
                raise ConfigError(f"parameters.file: {error}") from error
            self.names = self._file.names
        else:
            self.names = tuple(config.parameters.scalars)
            self._training = _sampler(config, TRAINING_STREAM, config.study.simulations)
            self._validation = _sampler(config, VALIDATION_STREAM, config.validation.simulations)

    @property
    def is_suggested(self) -> bool:
        """The parameters come from a class of the user's, and do not follow from seed and id alone."""
        return self._file is None and not self._config.parameters.sampler.is_built_in

    def has(self, simulation: int) -> bool:
        """Whether there are parameters for this id; a CSV file ends, a sampler does not."""
        return self._file is None or simulation < len(self._file.rows)

    def parameters(self, simulation: int) -> dict[str, float]:
        """The parameters of a simulation, in the order of study.json.

        Raises:
            ConfigError: the CSV file has no row for it.
            UserCodeError: the user's sampler raised, or suggested something that is no point.
        """
        return dict(zip(self.names, self._values(simulation), strict=True))

    @property
    def warnings(self) -> list[str]:
        """Warnings about it before it is used; of a user's class nothing is known yet."""
        warnings = DesignWarnings(self._config, self.names)
        if not self.is_suggested:
            planned = range(self._num_validation + self._config.study.simulations)
            warnings.note((simulation, self._values(simulation)) for simulation in planned if self.has(simulation))
        return warnings.texts

    def _values(self, simulation: int) -> tuple[float, ...]:
        if self._file is not None:
            if not self.has(simulation):
                rows = counted(len(self._file.rows), "row")
                raise ConfigError(f"parameters.file has {rows}, but simulation {simulation} needs one: add rows")
            return self._file.rows[simulation]
        if simulation < self._num_validation:
            return self._validation.values(simulation)
        return self._training.values(simulation - self._num_validation)


class DesignWarnings:
    """Warnings about the parameters of a study, as far as they are known. Pure."""

    def __init__(self, config: StudyConfig, names: Sequence[str]) -> None:
        self._config = config
        self._names = names
        self._held_out: dict[tuple[float, ...], list[int]] = {}
        self._repeated: dict[int, int] = {}
        self._least = [math.inf] * len(names)
        self._largest = [-math.inf] * len(names)
        self.num_noted = 0

    def note(self, simulations: Iterable[tuple[int, Iterable[float]]]) -> None:
        """Take the parameters of more simulations, in the order of their ids."""
        for simulation, numbers in simulations:
            values = tuple(numbers)
            self.num_noted += 1
            self._least = [*map(min, self._least, values)]
            self._largest = [*map(max, self._largest, values)]
            if simulation < self._config.validation.simulations:
                self._held_out.setdefault(values, []).append(simulation)
            elif values and values in self._held_out:
                for held_out in self._held_out[values]:
                    self._repeated.setdefault(held_out, simulation)

    @property
    def texts(self) -> list[str]:
        """Lines for the screen and the report."""
        return [*self._of_repeated(), *self._of_coarse()]

    def _of_repeated(self) -> Iterator[str]:
        if not self._repeated:
            return
        num, parameters = self._config.validation.simulations, self._config.parameters
        held_out, trained = next(iter(self._repeated.items()))
        advice = "give whole numbers and categories more values"
        if parameters.file is not None:
            advice = (
                f"the first {counted(num, 'row')} of parameters.file are held out: make the others differ from these"
            )
        elif not parameters.sampler.is_built_in:
            advice = f"let {parameters.sampler} draw its points with the argument `seed`, which differs for the two"
        who = f"{len(self._repeated)} of {counted(num, 'held-out simulation')} {'has' if num == 1 else 'have'}"
        yield (
            f"{who} the same parameters as simulations that are trained on (simulation {held_out} those of {trained}), "
            f"so that the validation does not show how the model does with new ones: {advice}"
        )

    def _of_coarse(self) -> Iterator[str]:
        """A warning of parameters that float32 hardly tells apart, unless they are normalized before."""
        if self._config.training.precision == "64-true" or self._config.normalization.parameters:
            return
        for name, least, largest in zip(self._names, self._least, self._largest, strict=True):
            # Half of the largest number of all: behind that one there is none.
            magnitude = np.float32(min(max(abs(least), abs(largest)), float(np.finfo(np.float32).max) / 2))
            num = (largest - least) / float(np.spacing(magnitude)) + 1
            if least < largest and num < ENOUGH_VALUES:
                yield (
                    f"parameter {name!r} is between {least!r} and {largest!r}, where float32 has "
                    f"{counted(round(num), 'different value')}: a model that is trained in it cannot tell simulations "
                    "apart. Take the parameter from an origin (and add that in the simulation), or set "
                    "normalization.parameters"
                )


class ParameterTable:
    """Rows of parameters, each asked for once: a batch then takes its rows in one operation. For several threads."""

    def __init__(self, parameters_of: Callable[[int], NDArray[np.float64]]) -> None:
        self._parameters_of = parameters_of
        self._rows = SimulationParameters()
        self._learning = Lock()

    def take(self, simulation_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """A copy of the rows of these simulations, shape (len(simulation_ids), P)."""
        if not self._rows.know(simulation_ids):
            with self._learning:
                for simulation in np.unique(simulation_ids).tolist():
                    if simulation not in self._rows:
                        self._rows[simulation] = self._parameters_of(simulation)
        return self._rows.take(simulation_ids)


def write_csv(
    path: Path, parameters: Mapping[int, Mapping[str, float]], origins: Mapping[int, Origin] | None = None
) -> None:
    """Write the parameters of all simulations by id, so that `parameters.file` can name the file.

    With `origins`, three more columns say where the parameters of a simulation come from, as far as that is known.
    """
    with open(path, "w", encoding="utf-8", newline="", opener=open_regular) as file:
        writer = csv.writer(file, lineterminator="\n")
        names = next(iter(parameters.values()), {})
        writer.writerow([ID_COLUMN, *names, *(() if origins is None else ORIGIN_COLUMNS)])
        writer.writerows(_rows(parameters, origins))


def append_csv(
    path: Path, parameters: Mapping[int, Mapping[str, float]], origins: Mapping[int, Origin] | None = None
) -> None:
    """Add simulations to a file that `write_csv` has written, with origins or without as they are given here."""
    with open(path, "a", encoding="utf-8", newline="", opener=open_regular) as file:
        csv.writer(file, lineterminator="\n").writerows(_rows(parameters, origins))


def _rows(
    parameters: Mapping[int, Mapping[str, float]], origins: Mapping[int, Origin] | None
) -> Iterator[list[object]]:
    for simulation, values in parameters.items():
        row = [simulation, *map(repr, values.values())]
        if origins is not None:
            origin = origins.get(simulation, Origin(by="", at=""))
            row += [origin.by, origin.at, "" if origin.score is None else repr(origin.score)]
        yield row


def _sampler(config: StudyConfig, stream: int, num: int) -> Sampler:
    sampler, bounds, folder = config.parameters.sampler, config.parameters.scalars, config.study_dir
    if sampler.is_built_in:
        return make_sampler(sampler.class_, bounds, stream_seed(config.study.data_seed, stream), num, folder=folder)
    seed = generator_seed(config.study.data_seed, stream)
    return GeneratedPoints(lambda: PointGenerator(sampler.class_, sampler.args, bounds, seed, folder=folder), num)


def stream_seed(seed: int, *key: int) -> SeedSequence:
    """The seed of the training or the validation parameters."""
    return SeedSequence(seed, spawn_key=key)


def generator_seed(seed: int, *key: int) -> int:
    """The seed of a user's class that suggests the training or the validation parameters."""
    return int(stream_seed(seed, *key).generate_state(1)[0])
