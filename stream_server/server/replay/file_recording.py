"""A folder of files, one for each simulation, read as if it were the record of one rank.

Why: docs/decisions/0043-offline-files.md
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.messages.client import DTYPES, FieldSpec
from stream_server.server.replay.record_format import HEAD, MOST_ENTRIES, SAMPLES, EntryHead, EntryKind, Heads
from stream_server.server.replay.record_reader import RecordEntry, kept_dtypes
from stream_server.server.replay.simulation_file import SUFFIX, SimulationFile
from stream_server.server.run import build
from stream_server.storage.disk import names_in
from stream_server.wording import counted

SUBFOLDER = "samples"
SHUFFLE_STREAM = 4
MOST_OPEN = 64
MOST_TOLD = 10


def files_in(folder: Path) -> list[Path]:
    """The files in a folder, or in that of the samples in an output folder."""
    for place in (folder / SUBFOLDER, folder):
        if files := [place / name for name in sorted(names_in(place)) if name.endswith(SUFFIX)]:
            return files
    return []


class FilesRecord:
    """The entries of all files, as `RankRecord` gives those of a rank. At most `MOST_OPEN` files are open.

    Their numbers count through the parameters of all simulations, what these share if they share anything, the held-out
    samples once, the others once an epoch, the ends of the simulations and those of trajectories. With
    `offline.shuffle` the order of an epoch is random, a function of the seed: that of the rows, or, where samples are
    windows, that of the files alone. A row is a position among the rows of all files, one file after the other.

    `dtypes` are the types in which the study keeps the fields.
    """

    rank = 0

    def __init__(self, files: Sequence[SimulationFile], config: StudyConfig) -> None:
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self._files = files
        self._takes_nonfinite = config.training.nonfinite == "keep"
        self._seed = config.study.data_seed if config.offline.shuffle else None
        self._keeps_files = config.window is not None
        self._simulations = np.array([file.simulation for file in files], np.int64)
        self._time_steps = np.concatenate([np.zeros(0, np.int64), *(file.time_steps for file in files)])
        self._ends = np.concatenate([np.zeros(0, np.int64), *(file.trajectory_ends for file in files)])
        each, lengths = np.arange(len(files)), [len(file.time_steps) for file in files]
        self._file_of_end = np.repeat(each, [len(file.trajectory_ends) for file in files])
        self._file_of_row = np.repeat(each, lengths)
        self._begins = np.cumsum([0, *lengths])
        is_held_out = self._simulations[self._file_of_row] < config.validation.simulations
        self._trained = np.flatnonzero(~is_held_out)
        self._epoch, self._rows = -1, self._trained
        before = [
            (EntryKind.PARAMETERS, each),
            (EntryKind.STATICS, each[: len(files) if config.study.static_fields else 0]),
            (EntryKind.HELD_OUT, np.flatnonzero(is_held_out)),
        ]
        self._first_epoch = len(before)
        self._sections = [
            *before,
            *[(EntryKind.SAMPLE, self._trained)] * config.offline.epochs,
            (EntryKind.FINISHED, np.flatnonzero([file.finished for file in files])),
            (EntryKind.TRAJECTORY_END, np.arange(len(self._ends))),
        ]
        self._stops = list(accumulate(len(places) for _, places in self._sections))
        self._open: OrderedDict[int, SimulationFile] = OrderedDict()

    def __len__(self) -> int:
        return self._stops[-1]

    def place(self, number: int) -> tuple[EntryKind, int]:
        """The kind of an entry, and its row, or else its file, or the number of the end of a trajectory."""
        section = bisect_right(self._stops, number)
        kind, places = self._section(section)
        return kind, int(places[number - (self._stops[section - 1] if section else 0)])

    def _section(self, number: int) -> tuple[EntryKind, npt.NDArray[np.int64]]:
        """The kind of many entries that follow each other, and their places as `place` gives them."""
        kind, places = self._sections[number]
        return kind, self._rows_of(number - self._first_epoch) if kind is EntryKind.SAMPLE else places

    def _rows_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """The rows in the order of an epoch; that of the last one that was asked for is kept."""
        if self._seed is not None and epoch != self._epoch:
            generator = np.random.default_rng((self._seed, SHUFFLE_STREAM, epoch))
            self._epoch = epoch
            if self._keeps_files:
                place = generator.permutation(len(self._files))[self._file_of_row[self._trained]]
                self._rows = self._trained[np.argsort(place, kind="stable")]
            else:
                self._rows = generator.permutation(self._trained)
        return self._rows

    def heads(self) -> Iterator[tuple[int, Heads]]:
        """The heads of all entries in their order, many at a time, and the number of the first of them.

        They do not tell about the values.
        """
        begin = 0
        for kind, places in map(self._section, range(len(self._sections))):
            for some in np.split(places, range(MOST_ENTRIES, len(places), MOST_ENTRIES)):
                yield begin, self._heads(kind, some)
                begin += len(some)

    def _heads(self, kind: EntryKind, places: npt.NDArray[np.int64]) -> Heads:
        heads = np.zeros(len(places), HEAD)
        heads["kind"] = kind
        files = places
        if kind in SAMPLES:
            files, heads["time_step"] = self._file_of_row[places], self._time_steps[places]
        elif kind is EntryKind.TRAJECTORY_END:
            files, heads["time_step"] = self._file_of_end[places], self._ends[places]
        heads["simulation"] = self._simulations[files]
        return heads

    def read(self, number: int) -> RecordEntry:
        """An entry.

        Raises:
            DamagedRecord: the file cannot be read.
            ConfigError: a value does not fit into its type, or is NaN or infinity, which the study does not take.
        """
        kind, place = self.place(number)
        head = EntryHead(*self._heads(kind, np.array([place]))[0].item())
        fields: dict[str, npt.NDArray[Any]] = {}
        parameters = np.empty(0)
        if kind is EntryKind.PARAMETERS:
            parameters = np.array(list(self._files[place].parameters.values()), np.float64)
        elif kind is EntryKind.STATICS:
            file, where = self._opened(place), ""
            found = file.read_statics()
            fields = {name: self._kept(f"{file.path}: /static/{name}", where, name, it) for name, it in found.items()}
        elif kind in SAMPLES:
            index = int(self._file_of_row[place])
            file, where = self._opened(index), f" in time step {head.time_step}"
            found = file.read(place - int(self._begins[index]))
            fields = {name: self._kept(f"{file.path}: /fields/{name}", where, name, it) for name, it in found.items()}
        return RecordEntry(
            kind=kind,
            simulation=head.simulation,
            time_step=head.time_step,
            fields=fields,
            parameters=parameters,
        )

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _opened(self, index: int) -> SimulationFile:
        file = self._files[index]
        if index not in self._open:
            if len(self._open) == MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            file.open()
            self._open[index] = file
        self._open.move_to_end(index)
        return file

    def _kept(self, field: str, where: str, name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A field in the type of the study."""
        with np.errstate(over="ignore"):
            kept = value.astype(self.dtypes[name], copy=False)
        if kept.dtype.kind in "iu" and not np.array_equal(kept, value):
            raise ConfigError(
                f"{field} has values{where} that {kept.dtype}, the dtype in study.json, does not have. Give it a "
                "larger one"
            )
        if not self._takes_nonfinite and kept.dtype.kind in "fc" and not np.isfinite(kept).all():
            too_large = f", or values too large for {kept.dtype}," if np.isfinite(value).all() else ""
            leave_out = "Leave that step out of the file" if where else "Leave the simulation out"
            raise ConfigError(
                f'{field} has NaN or infinity{too_large}{where}. {leave_out}, or write "nonfinite": "keep" in training'
            )
        return kept


class FileRecording:
    """All files in a folder, checked against the study, as `Recording` gives the record of a study.

    `warnings` name what is not there. Two files of one simulation, or files that do not fit, are refused by `check`.

    Raises:
        ConfigError: a file is not laid out as it must be, or is damaged.
    """

    def __init__(self, paths: Sequence[Path], config: StudyConfig) -> None:
        self.folder = paths[0].parent
        # The files of all simulations are read as those of one rank.
        self.latest = range(1)
        self.files = sorted(map(SimulationFile, paths), key=lambda file: file.simulation)
        self.warnings = list(_absences(self.files, config))
        self.ranks = [FilesRecord(self.files, config)]

    def simulations_at_once(self, config: StudyConfig) -> int:
        """Number of simulations that are gone through in turn where samples are windows."""
        return config.max_simulations_at_once if config.offline.shuffle else 1

    def close(self) -> None:
        self.ranks[0].close()

    def check(self, config: StudyConfig, parameters: Sequence[str]) -> None:
        """Refuse a study that cannot be trained from these files; `parameters` are the names of its parameters.

        Raises:
            ConfigError: they differ in what study.json describes; the message lists what is wrong.
        """
        problems = list(_problems(self.files, config, parameters))
        if problems:
            listed = "".join(f"\n  {problem}" for problem in problems[:MOST_TOLD])
            more = f"\n  and {len(problems) - MOST_TOLD} more" if len(problems) > MOST_TOLD else ""
            raise ConfigError(f"study.json does not fit the files in {self.folder}:{listed}{more}")
        for file in self.files:
            file.parameters = {name: file.parameters[name] for name in parameters}
            file.fields = {name: file.fields[name] for name in config.study.step_fields if name in file.fields}
            file.statics = {name: file.statics[name] for name in config.study.static_fields}
        self.ranks[0].dtypes = kept_dtypes(config, self.recorded_dtypes)

    @property
    def recorded_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The types of the fields; files may have different ones, which are cast to these."""
        found: dict[str, set[np.dtype[Any]]] = {}
        for file in self.files:
            for name, (_, dtype) in [*file.fields.items(), *file.statics.items()]:
                found.setdefault(name, set()).add(dtype)
        return {name: np.result_type(*dtypes) for name, dtypes in found.items()}


def _absences(files: Sequence[SimulationFile], config: StudyConfig) -> Iterator[str]:
    num_held_out = config.validation.simulations
    there = {file.simulation for file in files}
    missing = [i for i in range(num_held_out + config.study.simulations) if i not in there]
    if missing:
        yield f"there is no file of simulation {_listed(missing)}"
    if empty := [file.simulation for file in files if not len(file.time_steps)]:
        yield f"there is no time step of simulation {_listed(empty)}"
    if unfinished := [file.simulation for file in files if not file.finished]:
        yield f"not all time steps are there of simulation {_listed(unfinished)}"


def _listed(simulations: Sequence[int]) -> str:
    named = ", ".join(map(str, simulations[:MOST_TOLD]))
    return named if len(simulations) <= MOST_TOLD else f"{named} and {len(simulations) - MOST_TOLD} more"


def _problems(files: Sequence[SimulationFile], config: StudyConfig, parameters: Sequence[str]) -> Iterator[str]:
    known: dict[int, Path] = {}
    for file in files:
        if file.simulation < 0:
            yield f"{file.path.name}: the simulation must be 0 or more, but is {file.simulation}"
        if file.simulation in known:
            yield f"{file.path.name} and {known[file.simulation].name} are both of simulation {file.simulation}"
        known[file.simulation] = file.path
        if lacking := [name for name in parameters if name not in file.parameters]:
            yield f"{file.path.name}: /parameters lacks the attribute {', '.join(lacking)}"
        for name in parameters:
            if not math.isfinite(file.parameters.get(name, 0.0)):
                yield f"{file.path.name}: the attribute {name} of /parameters must be a finite number"
        yield from _problems_of_labels(file, config)
        for field in build.field_specs(config):
            if problem := _problem_of_static(file, field) if field.is_static else _problem_of_field(file, field):
                yield f"{file.path.name}: /{'static' if field.is_static else 'fields'}/{field.name} {problem}"


def _problem_of_static(file: SimulationFile, field: FieldSpec) -> str:
    if field.name not in file.statics:
        return "is missing, which is sent once per simulation"
    shape, dtype = file.statics[field.name]
    if field.ragged and len(shape) == len(field.shape) and shape[1:] == field.shape[1:]:
        if shape[0] > field.shape[0]:
            return f"has {counted(shape[0], 'row')}, but study.json allows {field.shape[0]}"
    elif shape != field.shape:
        return f"must have the shape {_shown(field)}, but has {list(shape)}"
    return _problem_of_type(field, dtype)


def _shown(field: FieldSpec) -> str:
    return str([f"0 to {field.shape[0]}", *field.shape[1:]] if field.ragged else list(field.shape)).replace("'", "")


def _problem_of_field(file: SimulationFile, field: FieldSpec) -> str:
    if field.name not in file.fields:
        return "" if field.optional else f"is missing; there are {', '.join(file.fields) or 'no fields'}"
    shape, dtype = file.fields[field.name]
    lengths = file.lengths.get(field.name)
    if field.ragged and lengths is None:
        return f"needs /lengths/{field.name}, the number of its rows in each time step"
    if not field.ragged and lengths is not None:
        return f"differs from step to step (/lengths/{field.name}), but has one shape in study.json"
    expected = field.shape[1:] if field.ragged else field.shape
    if shape != expected:
        where = "each row" if field.ragged else "each time step"
        return f"must have the shape {list(expected)} in {where}, but has {list(shape)}"
    if lengths is not None and lengths.max(initial=0) > field.shape[0]:
        return f"has {counted(int(lengths.max()), 'row')} in a time step, but study.json allows {field.shape[0]}"
    if problem := _problem_of_type(field, dtype):
        return problem
    if not field.optional and not file.present.get(field.name, np.array(True)).all():
        return "is missing in some time steps, and is not optional"
    return ""


def _problem_of_type(field: FieldSpec, dtype: npt.DTypeLike) -> str:
    if field.dtype and not np.can_cast(dtype, field.dtype, "same_kind"):
        return f"is {dtype}, which is not converted to {np.dtype(field.dtype)}, the dtype in study.json"
    if np.dtype(dtype).newbyteorder("<").str not in DTYPES:
        return f"is {dtype}, which is no type of a field"
    return ""


def _problems_of_labels(file: SimulationFile, config: StudyConfig) -> Iterator[str]:
    steps = build.time_steps(config)
    if len(np.unique(file.time_steps)) != len(file.time_steps):
        yield f"{file.path.name}: /time_step has a label twice"
    indices, remainders = np.divmod(file.time_steps - steps.first, steps.every)
    wrong = (remainders != 0) | (indices < 0) | (indices >= (steps.num or np.inf))
    if wrong.any():
        yield (
            f"{file.path.name}: the time step {file.time_steps[wrong][0]} is none of study.time_steps "
            f"(first {steps.first}, every {steps.every}, {steps.num or 'any number of them'})"
        )
