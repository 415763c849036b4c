"""Files that grow, with all time steps of a simulation: which steps are whole, and the arrays of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stream_server.adapters.fields import Arrays
from stream_server.adapters.follow_attributes import row, whole
from stream_server.adapters.follow_formats import ADIOS, HDF5, NETCDF, datasets, of_mesh, reader_of, variables
from stream_server.errors import ConfigError

# Of the first 12 bytes of HDF5 with a superblock of version 3: its version, and the mark of a writer for SWMR.
VERSION_BYTE, FLAGS_BYTE, WITH_FLAGS, SWMR_WRITER = 8, 11, 3, 4


class WholeSteps(NamedTuple):
    """The steps that are whole: how many, and the arrays of each; None is known as long as nothing may be read."""

    num: int
    at: Callable[[int], Arrays]


# Takes the names of the arrays that have a row for each step, and whether the solver has ended.
SeriesReader = Callable[[Path, Sequence[str], bool], AbstractContextManager[WholeSteps]]


def series_reader_of(suffix: str) -> SeriesReader:
    """The reader of a file that grows, by its ending.

    Raises:
        ConfigError: nothing reads such a file, or a package for it is missing.
    """
    if suffix in ADIOS:
        raise ConfigError(
            f"a file that ends with {suffix!r} and grows is a stream of ADIOS2: stream-adios sends its steps as they "
            "come (docs/guide/adios.md)"
        )
    reader_of(suffix)
    if suffix in HDF5:
        return _hdf5
    if suffix in NETCDF:
        return _netcdf
    if suffix == ".xdmf":
        return _xdmf
    raise ConfigError(
        f"a file that ends with {suffix!r} has one time step: expected a pattern such as 'out/step_*{suffix}', or one "
        "file with all steps that ends with .h5, .nc or .xdmf"
    )


def _rows_of(found: Mapping[str, Any], names: Sequence[str], has_ended: bool) -> WholeSteps:
    """The rows of these variables: as long as somebody writes, a row is whole once all of them have the next one.

    Of a variable that was made with all of its rows nobody knows which are written.
    """
    for name in names:
        if name in found and not found[name].shape:
            raise ConfigError(f"{name!r} is one number: expected a first dimension with a row for each time step")
    there = [found[name] for name in names if name in found]
    num = min((it.shape[0] for it in there), default=0)
    if not has_ended and any(it.shape[0] == it.maxshape[0] for it in there):
        num = 0

    def at(index: int) -> Arrays:
        return {name: partial(row, it, index) if name in names else partial(whole, it) for name, it in found.items()}

    return WholeSteps(num if has_ended else max(0, num - 1), at)


def _nothing_yet() -> WholeSteps:
    return WholeSteps(0, lambda index: {})


@contextmanager
def _hdf5(path: Path, names: Sequence[str], has_ended: bool) -> Iterator[WholeSteps]:
    with path.open("rb") as file:
        head = file.read(FLAGS_BYTE + 1)
    is_swmr = len(head) > FLAGS_BYTE and head[VERSION_BYTE] == WITH_FLAGS and bool(head[FLAGS_BYTE] & SWMR_WRITER)
    # What another writer still has in memory may be missing anywhere in the file.
    if not is_swmr and not has_ended:
        yield _nothing_yet()
        return
    with datasets(path, swmr=is_swmr) as found:
        yield _rows_of(found, names, has_ended)


@contextmanager
def _netcdf(path: Path, names: Sequence[str], has_ended: bool) -> Iterator[WholeSteps]:
    if not has_ended:
        yield _nothing_yet()
        return
    with variables(path) as found:
        yield _rows_of(found, names, has_ended)


@contextmanager
def _xdmf(path: Path, names: Sequence[str], has_ended: bool) -> Iterator[WholeSteps]:
    if not has_ended:
        yield _nothing_yet()
        return
    import meshio  # type: ignore[import-untyped]

    with meshio.xdmf.TimeSeriesReader(path) as file:
        points, cells = file.read_points_cells()

        def at(index: int) -> Arrays:
            _, point_data, cell_data = file.read_data(index)
            return of_mesh(points, cells, point_data, cell_data)

        yield WholeSteps(file.num_steps, at)
