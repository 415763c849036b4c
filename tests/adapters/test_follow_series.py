"""Files that grow while they are read."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import meshio
import numpy as np
import pytest
from scipy.io import netcdf_file

from stream_server.adapters.follow_series import series_reader_of
from stream_server.errors import ConfigError
from tests.adapters.files import CELLS, FIELDS, POINTS, arrays

NUM = 3
# HDF5 shares what it knows of a file within a process, so that another one has to read.
READ = """
import sys
from pathlib import Path
from stream_server.adapters.follow_series import series_reader_of
for line in sys.stdin:
    path, state = line.split()
    with series_reader_of(Path(path).suffix)(Path(path), ("u", "velocity"), state == "ended") as steps:
        arrays = [steps.at(index)[name]() for index in range(steps.num) for name in ("u", "velocity")]
    print(steps.num, *(float(values.sum()) for values in arrays), flush=True)
"""
Add = Callable[[int], None]
Read = Callable[[Path, str], list[float]]


@pytest.fixture
def read() -> Iterator[Read]:
    """Gives the number of whole steps, and the sum of each array."""

    def read(path: Path, state: str) -> list[float]:
        assert reader.stdin is not None and reader.stdout is not None  # noqa: PT018
        reader.stdin.write(f"{path.resolve()} {state}\n")
        reader.stdin.flush()
        return [float(word) for word in reader.stdout.readline().split()]

    with subprocess.Popen(
        [sys.executable, "-c", READ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        yield read


def expected(num: int) -> list[float]:
    return [num, *(float(arrays(step)[name].sum()) for step in range(num) for name in FIELDS)]


@contextmanager
def hdf5(path: Path, *, swmr: bool) -> Iterator[Add]:
    with h5py.File(path, "w", libver="latest" if swmr else None) as file:
        for name, values in arrays(0).items():
            file.create_dataset(
                name, (0, *values.shape), "f8", maxshape=(None, *values.shape), chunks=(1, *values.shape)
            )
        if swmr:
            with warnings.catch_warnings(action="ignore"):
                # Of the type of the data, which others could read meanwhile.
                file.swmr_mode = True

        def add(step: int) -> None:
            for name, values in arrays(step).items():
                file[name].resize(step + 1, axis=0)
                file[name][step] = values
                file[name].flush()

        yield add


@contextmanager
def netcdf(path: Path) -> Iterator[Add]:
    with netcdf_file(path, "w") as file:
        for name, size in {"time": None, "points": 4, "axes": 3}.items():
            file.createDimension(name, size)
        variables = {
            name: file.createVariable(name, "f8", ("time", "points", "axes")[: values.ndim + 1])
            for name, values in arrays(0).items()
        }

        def add(step: int) -> None:
            for name, values in arrays(step).items():
                variables[name][step] = values
            file.flush()

        yield add


@contextmanager
def xdmf(path: Path) -> Iterator[Add]:
    with meshio.xdmf.TimeSeriesWriter(path) as writer:
        writer.write_points_cells(POINTS, CELLS)
        yield lambda step: writer.write_data(step, point_data=arrays(step))


def test_a_step_of_hdf5_is_whole_once_the_next_one_has_begun(tmp_path: Path, read: Read) -> None:
    path = tmp_path / "all.h5"
    with hdf5(path, swmr=True) as add:
        assert read(path, "runs") == [0]
        for step in range(NUM):
            add(step)
            assert read(path, "runs") == expected(step)
        # The file of a solver that was killed is left so.
        assert read(path, "ended") == expected(NUM)
    assert read(path, "ended") == expected(NUM)


def test_rows_that_were_made_beforehand_are_whole_at_the_end(tmp_path: Path, read: Read) -> None:
    path = tmp_path / "all.h5"
    with h5py.File(path, "w", libver="latest") as file, warnings.catch_warnings(action="ignore"):
        for name, values in arrays(0).items():
            file.create_dataset(name, (NUM, *values.shape), "f8")
        file.swmr_mode = True
        assert read(path, "runs") == [0]
        for step in range(NUM):
            for name, values in arrays(step).items():
                file[name][step] = values
    assert read(path, "ended") == expected(NUM)


@pytest.mark.parametrize(
    ("name", "grows"), [("all.h5", lambda path: hdf5(path, swmr=False)), ("all.nc", netcdf), ("all.xdmf", xdmf)]
)
def test_files_of_which_nobody_knows_what_is_whole_are_read_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, name: str, grows: Any
) -> None:
    # XDMF names its other file without a folder.
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    with grows(path) as add:
        for step in range(NUM):
            add(step)
        path.touch()
        assert read(path, "runs") == [0]
    assert read(path, "ended") == expected(NUM)


def test_a_variable_without_a_time_is_told(tmp_path: Path) -> None:
    path = tmp_path / "all.h5"
    with h5py.File(path, "w") as file:
        file["u"] = 1.0
    with pytest.raises(ConfigError, match="'u' is one number: expected a first dimension"):
        series_reader_of(".h5")(path, ("u",), True).__enter__()


def test_a_format_that_does_not_grow_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"has one time step: expected a pattern such as 'out/step_\*\.vtk'"):
        series_reader_of(".vtk")


def test_a_stream_of_adios_has_a_command_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"a stream of ADIOS2: stream-adios sends .* \(docs/guide/adios\.md\)"):
        series_reader_of(".bp")


def test_a_field_that_all_steps_share_is_whole_beside_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "all.h5"
    with h5py.File(path, "w") as file:
        file["u"], file["mesh/points"] = np.arange(6.0).reshape(2, 3), POINTS
    with series_reader_of(".h5")(path, ("u",), True) as steps:
        assert steps.at(1)["u"]().tolist() == [3, 4, 5]
        assert np.array_equal(steps.at(1)["mesh/points"](), POINTS)
