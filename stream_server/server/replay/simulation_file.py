"""The HDF5 file of one simulation: its parameters, the labels of its time steps, and a dataset for each field.

    /                    attributes: format 1, study, simulation, finished
    /parameters          attributes: a number for each parameter
    /time_step           the labels, int64; the first dimension of every field
    /fields/NAME         an array for each time step; of a field that differs from step to step the rows of all of them
    /lengths/NAME        only of such a field: how many of these rows each time step has
    /present/NAME        only of a field that some steps lack: which ones have it
    /static/NAME         a field that is sent once per simulation
    /trajectory_ends     only of attempts that differ: the labels behind which another trajectory begins, int64

Every byte that matters has a checksum: the chunks of all datasets (fletcher32), and, in the format of HDF5 1.10, what
HDF5 itself writes about them, so that no chunk and no attribute is lost or taken for another. docs/guide/offline.md has
the same for those who write such files themselves.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.errors import ConfigError, DamagedRecord
from stream_server.extras import extra_packages
from stream_server.failpoints import failpoint
from stream_server.messages.client import FieldSpec
from stream_server.storage import disk
from stream_server.storage.library_file import LibraryFile
from stream_server.storage.typed import shortened

FORMAT = 1
SUFFIX = ".h5"
BLOCK_BYTES = 2**20
CHUNK_BYTES = 2**16
VERSION = "v110"
# HDF5 allows chunks below 4 GiB.
LARGEST_CHUNK_BYTES = 2**31
# They are read at once, and may be compressed.
MOST_ROWS = 2**27
# A chunk is read as a whole, and a few compressed bytes may stand for it; one that is a row may be as large as that.
MOST_CHUNK_BYTES = 2**26

Arrays = Mapping[str, npt.NDArray[Any]]


def load_h5py() -> Any:
    """The package h5py.

    Raises:
        ConfigError: it is not installed.
    """
    with extra_packages("a file of samples"):
        import h5py  # type: ignore[import-untyped]
    return h5py


def path_of(folder: Path, simulation: int) -> Path:
    return folder / f"simulation-{simulation:06d}.h5"


def write_simulation(
    path: Path,
    *,
    study: str,
    simulation: int,
    parameters: Mapping[str, float],
    time_steps: Sequence[int],
    trajectory_ends: Sequence[int],
    finished: bool,
    fields: Sequence[FieldSpec],
    samples: Iterable[Arrays],
    statics: Arrays,
) -> None:
    """Write all steps of a simulation; `path` is there, whole and on disk, when this returns, and not before.

    `fields` say in which types they are kept; `samples` has the fields of each of the `time_steps`, `statics` those
    that are sent once.

    Raises:
        OSError: the disk is full or fails.
    """
    h5py = load_h5py()
    step_fields = [field for field in fields if not field.is_static]
    disk.remove_leftovers(path)
    with LibraryFile(path) as target:
        with h5py.File(target, "w", libver=(VERSION, VERSION)) as file:
            file.attrs.update({"format": FORMAT, "study": study, "simulation": simulation, "finished": finished})
            file.create_group("parameters").attrs.update(parameters)
            labels = file.create_dataset("time_step", data=np.array(time_steps, np.int64), fletcher32=True)
            labels.make_scale("time_step")
            if trajectory_ends:
                file.create_dataset("trajectory_ends", data=np.array(trajectory_ends, np.int64), fletcher32=True)
            for field in fields:
                if field.is_static:
                    _write_static(file, field, statics[field.name])
            for field in step_fields:
                dataset = _make_dataset(file, field, len(time_steps))
                if not field.ragged:
                    dataset.dims[0].attach_scale(labels)
            _fill(file, step_fields, len(time_steps), takewhile(lambda _: target.error is None, samples))
        failpoint("files.written")
    failpoint("files.in_place")


def _write_static(file: Any, field: FieldSpec, values: npt.NDArray[Any]) -> None:
    dtype = np.dtype(field.dtype)
    if field.ragged:
        _append(_make_rows(file, f"static/{field.name}", field), values)
        return
    if field.shape:
        chunk: Any = field.shape if _num_bytes(field) <= LARGEST_CHUNK_BYTES else True
        file.create_dataset(f"static/{field.name}", data=values, dtype=dtype, chunks=chunk, fletcher32=True)
        return
    # A scalar has no chunk that could have a checksum. Compact, it is in the header of its dataset, which has one; h5py
    # makes such a dataset only on its low level.
    h5py = load_h5py()
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    stored, scalar = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create(h5py.h5s.SCALAR)
    group = file.require_group("static")
    h5py.Dataset(h5py.h5d.create(group.id, field.name.encode(), stored, scalar, compact))[()] = values


def _make_dataset(file: Any, field: FieldSpec, num_steps: int) -> Any:
    if field.ragged:
        return _make_rows(file, f"fields/{field.name}", field)
    step_bytes = _num_bytes(field)
    chunk: Any = (min(num_steps, max(1, CHUNK_BYTES // step_bytes)), *field.shape)
    if step_bytes > LARGEST_CHUNK_BYTES:
        chunk = True
    shape, dtype = (num_steps, *field.shape), np.dtype(field.dtype)
    return file.create_dataset(f"fields/{field.name}", shape, dtype, chunks=chunk, fletcher32=True)


def _make_rows(file: Any, name: str, field: FieldSpec) -> Any:
    """A dataset without any row yet."""
    shape, dtype = field.shape[1:], np.dtype(field.dtype)
    num = max(1, CHUNK_BYTES // max(1, math.prod(shape) * dtype.itemsize))
    return file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(num, *shape), fletcher32=True)


def _fill(file: Any, fields: Sequence[FieldSpec], num_steps: int, samples: Iterable[Arrays]) -> None:
    """Write the steps, many at a time, and which of them have which field unless all have."""
    num_in_block = max(1, min(num_steps, BLOCK_BYTES // sum(map(_num_bytes, fields))))
    block = {it.name: np.zeros((num_in_block, *it.shape), np.dtype(it.dtype)) for it in fields if not it.ragged}
    present = {it.name: np.ones(num_steps, np.bool_) for it in fields}
    lengths = {it.name: np.zeros(num_steps, np.int64) for it in fields if it.ragged}
    for row, sample in enumerate(samples):
        place = row % num_in_block
        for name, steps in present.items():
            steps[row] = name in sample
        for name in lengths.keys() & sample.keys():
            lengths[name][row] = len(sample[name])
            _append(file[f"fields/{name}"], sample[name])
        for name, array in block.items():
            array[place] = sample.get(name, 0)
        if place + 1 == num_in_block or row + 1 == num_steps:
            for name, array in block.items():
                file[f"fields/{name}"][row - place : row + 1] = array[: place + 1]
    for name, steps in present.items():
        if not steps.all():
            file.create_dataset(f"present/{name}", data=steps, fletcher32=True)
    for name, of_steps in lengths.items():
        file.create_dataset(f"lengths/{name}", data=of_steps, fletcher32=True)


def _append(dataset: Any, rows: npt.NDArray[Any]) -> None:
    num = len(dataset)
    dataset.resize(num + len(rows), axis=0)
    dataset[num:] = rows


def _num_bytes(field: FieldSpec) -> int:
    return max(1, math.prod(field.shape) * np.dtype(field.dtype).itemsize)


class SimulationFile:
    """A file that is read: its head at once, its samples row by row. It holds the file open from `open` to `close`.

    Attributes:
        simulation: the id.
        finished: whether all of the simulation is in the file; a file that does not say so is whole.
        parameters: by their names, NaN for what is no number.
        time_steps: the labels of the rows.
        trajectory_ends: labels behind which the rows are of another trajectory.
        fields: shape and type of one row of each field; of one in `lengths` that of a row of a time step.
        lengths: how many rows each time step has of a field that differs from step to step.
        present: which rows have a field, for fields that some lack.
        statics: shape and type of each field that is sent once per simulation.

    Raises:
        DamagedRecord: the file cannot be read.
        ConfigError: it is not laid out like a file of samples.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._found: dict[str, Any] = {}
        try:
            self.open()
            self._read_head()
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
            why = shortened(str(error))
            raise DamagedRecord(
                f"{path} is no file of samples, or is damaged: {why}. Put back a copy of it, or remove it"
            ) from error
        finally:
            self.close()

    def open(self) -> None:
        if self._file is None:
            disk.close(disk.open_regular(self.path))
            self._file = load_h5py().File(self.path, "r", locking=False)

    def close(self) -> None:
        """Close the file, until it is opened again."""
        if self._file is not None:
            self._found.clear()
            self._file.close()
            self._file = None

    def read(self, row: int) -> dict[str, npt.NDArray[Any]]:
        """The fields of a row.

        Raises:
            DamagedRecord: the file is not as it was written.
        """
        names = [name for name in self.fields if name not in self.present or self.present[name][row]]
        try:
            return {name: np.asarray(self._dataset("fields", name)[self._place(name, row)]) for name in names}
        except (OSError, KeyError, ValueError) as error:
            raise DamagedRecord(f"{self.path}: time step {self.time_steps[row]} cannot be read: {error}") from error

    def read_statics(self) -> dict[str, npt.NDArray[Any]]:
        """The fields that are sent once per simulation.

        Raises:
            DamagedRecord: the file is not as it was written.
        """
        try:
            return {name: np.asarray(self._dataset("static", name)[()]) for name in self.statics}
        except (OSError, KeyError, ValueError) as error:
            raise DamagedRecord(f"{self.path}: /static cannot be read: {error}") from error

    def _place(self, name: str, row: int) -> int | slice:
        """The rows of a dataset that hold the values of a time step."""
        if name not in self.lengths:
            return row
        end = int(self._ends[name][row])
        return slice(end - int(self.lengths[name][row]), end)

    def _read_head(self) -> None:
        file, path = self._file, self.path
        # `in` and `get` cannot tell a missing name from an unreadable one.
        groups, attributes = list(file), list(file.attrs)
        if "simulation" not in attributes:
            raise ConfigError(
                f'{path} must have the attribute "simulation", the id, at its root: docs/guide/offline.md'
            )
        if "format" in attributes and (found := int(_attribute(file, "format"))) != FORMAT:
            raise ConfigError(f"{path}: expected format {FORMAT}, found {found}: read it with the release it is of")
        for name in ("time_step", "fields"):
            if name not in groups:
                raise ConfigError(f"{path} must have /{name}: docs/guide/offline.md")
        self.simulation = int(self._integers("attribute simulation", _attribute(file, "simulation"), np.int64, ()))
        finished = _attribute(file, "finished") if "finished" in attributes else True
        self.finished = bool(self._integers("attribute finished", finished, np.bool_, ()))
        self.parameters = _numbers_of(self._in(file, "parameters")) if "parameters" in groups else {}
        self.time_steps = self._labels("time_step")
        self.trajectory_ends = self._labels("trajectory_ends") if "trajectory_ends" in groups else np.zeros(0, np.int64)
        self.fields = {}
        in_lengths = self._in(file, "lengths") if "lengths" in groups else {}
        self.lengths = {name: self._lengths(f"/lengths/{name}", self._in(in_lengths, name)) for name in in_lengths}
        self._ends = {name: np.cumsum(lengths) for name, lengths in self.lengths.items()}
        fields = self._in(file, "fields")
        for name in fields:
            dataset = self._dataset("fields", name)
            num, what = len(self.time_steps), "one for each of /time_step"
            if name in self.lengths:
                num, what = int(self.lengths[name].sum()), f"as many as /lengths/{name} adds up to"
            if dataset.shape[:1] != (num,):
                raise ConfigError(
                    f"{path}: /fields/{name} must have {num} rows, {what}, but has the shape {dataset.shape}"
                )
            self.fields[name] = (dataset.shape[1:], dataset.dtype)
        in_static = self._in(file, "static") if "static" in groups else {}
        statics = {name: self._dataset("static", name) for name in in_static}
        self.statics = {name: (dataset.shape, dataset.dtype) for name, dataset in statics.items()}
        present = self._in(file, "present") if "present" in groups else {}
        self.present = {name: self._of_steps(f"/present/{name}", self._in(present, name), np.bool_) for name in present}

    def _labels(self, name: str) -> npt.NDArray[Any]:
        labels = self._written(f"/{name}", self._in(self._file, name))
        if len(labels.shape) != 1 or labels.size > MOST_ROWS:
            raise ConfigError(
                f"{self.path}: /{name} must be a list of {MOST_ROWS} labels at most, but has the shape {labels.shape}"
            )
        return self._integers(f"/{name}", labels[()], np.int64, labels.shape)

    def _of_steps(self, name: str, dataset: Any, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """A value for each time step."""
        written = self._written(name, dataset)
        # Of another shape it is refused unread: it may be of any size.
        values = written[()] if written.shape == self.time_steps.shape else np.zeros(0, dtype)
        return self._integers(name, values, dtype, self.time_steps.shape)

    def _lengths(self, name: str, dataset: Any) -> npt.NDArray[np.int64]:
        lengths = self._of_steps(name, dataset, np.int64)
        if (lengths < 0).any() or lengths.sum(dtype=np.float64) > MOST_ROWS * float(MOST_ROWS):
            raise ConfigError(f"{self.path}: {name} must be numbers of rows, from 0 on")
        return lengths

    def _dataset(self, group: str, name: str) -> Any:
        """A dataset with values of time steps, or of all of the simulation; looked at anew since the file was opened.

        Whoever made the file may have replaced it meanwhile.
        """
        path = f"/{group}/{name}"
        if path not in self._found:
            found = self._in(self._in(self._file, group), name)
            self._found[path] = self._written(path, found, is_static=group == "static")
        return self._found[path]

    def _in(self, group: Any, name: str) -> Any:
        """The object of this name in a group of the file.

        Raises:
            ConfigError: it may be in another file, which whoever made this one may have chosen: the path in a soft link
                may lead by one to there.
        """
        if not isinstance(group.get(name, getlink=True), load_h5py().HardLink):
            raise ConfigError(
                f"{self.path}: {group.name.rstrip('/')}/{name} is a link to another place or file: copy the values"
            )
        return group[name]

    def _integers(self, name: str, value: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The values that were read, in the type that the study gives them.

        Raises:
            ConfigError: it is not of this shape, or would become something else.
        """
        found = np.asarray(value)
        if found.shape != shape or found.dtype.kind not in "biuf" or not np.array_equal(found.astype(dtype), found):
            kind = "true or false" if dtype is np.bool_ else "whole numbers"
            raise ConfigError(
                f"{self.path}: {name} must be {kind} of the shape {list(shape)}, but is {found.dtype} of the shape "
                f"{list(found.shape)}{'' if found.size > 1 else f': {found}'}"
            )
        return found.astype(dtype)

    def _written(self, name: str, dataset: Any, *, is_static: bool = False) -> Any:
        """A dataset of which all is there; HDF5 reads zeros where nothing was written, and where a source is missing.

        It is read row by row, or as a whole if it `is_static`.

        Raises:
            ConfigError: it is another one.
        """
        if dataset.is_virtual:
            problem = "is a virtual dataset, of which parts may be missing unnoticed: copy the values"
        elif dataset.external is not None:
            problem = "has its values in another file: copy them"
        elif dataset.size and not _is_allocated(dataset):
            problem = "has rows that were never written: write them, or leave these time steps out"
        elif dataset.chunks and _has_large_chunks(dataset, dataset.shape if is_static else dataset.shape[1:]):
            problem = (
                f"has chunks of the shape {dataset.chunks}, which may have a row, or {MOST_CHUNK_BYTES >> 20} MiB: "
                "write it with smaller ones"
            )
        else:
            return dataset
        raise ConfigError(f"{self.path}: {name} {problem}")


def _has_large_chunks(dataset: Any, at_once: Sequence[int]) -> bool:
    """Whether a chunk has much more than what is read `at_once`."""
    most = max(MOST_CHUNK_BYTES // dataset.dtype.itemsize, math.prod(at_once))
    return bool(math.prod(dataset.chunks) > most)


def _is_allocated(dataset: Any) -> bool:
    if not dataset.chunks:
        return bool(dataset.id.get_storage_size())
    num_chunks = math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    return bool(dataset.id.get_num_chunks() == num_chunks)


def _attribute(group: Any, name: str) -> npt.NDArray[Any]:
    """An attribute; of one that is no number, and may be of any size, the type and shape alone."""
    found = group.attrs.get_id(name)
    if math.prod(found.shape) == 1 and found.dtype.kind in "biuf":
        return np.asarray(group.attrs[name])
    return np.broadcast_to(np.empty((), found.dtype), found.shape)


def _numbers_of(group: Any) -> dict[str, float]:
    """The attributes of a group as they are written; NaN for what cannot be a parameter."""
    found = {name: _attribute(group, name) for name in group.attrs}
    return {
        name: float(it.item()) if it.size == 1 and it.dtype.kind in "biuf" else math.nan for name, it in found.items()
    }
