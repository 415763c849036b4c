"""Files of the formats that are followed, with the same arrays, made by what codes write them with."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import adios2
import h5py
import meshio
import numpy as np
from numpy.typing import NDArray
from scipy.io import netcdf_file

POINTS = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
CELLS = [("triangle", np.array([[0, 1, 2], [1, 2, 3]]))]
FIELDS = ("u", "velocity")


def arrays(step: int) -> dict[str, NDArray[Any]]:
    """A number and a vector at each of four points."""
    return {"u": np.arange(4.0) + 10 * step, "velocity": np.arange(12.0).reshape(4, 3) - step}


def npy(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    np.save(path, fields["u"])


def npz(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, **fields)


def hdf5(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values


def netcdf(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    with netcdf_file(path, "w") as file:
        file.createDimension("points", 4)
        file.createDimension("axes", 3)
        for name, values in fields.items():
            file.createVariable(name, "f8", ("points", "axes")[: values.ndim])[:] = values


def mesh(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    meshio.Mesh(POINTS, CELLS, point_data=dict(fields)).write(path)


def bp(path: Path, fields: Mapping[str, NDArray[Any]]) -> None:
    with adios2.Stream(str(path), "w") as stream:
        stream.begin_step()
        for name, values in fields.items():
            stream.write(name, values, values.shape, [0] * values.ndim, values.shape)
        stream.end_step()


WRITERS: Mapping[str, Callable[[Path, Mapping[str, NDArray[Any]]], None]] = {
    ".npy": npy,
    ".npz": npz,
    ".h5": hdf5,
    ".nc": netcdf,
    ".nc4": hdf5,
    ".vtk": mesh,
    ".vtu": mesh,
    ".xdmf": mesh,
    ".bp": bp,
}


def write(folder: Path, ending: str, step: int) -> Path:
    """The file of one step; XDMF writes another one beside it."""
    path = folder / f"step_{step:03d}{ending}"
    WRITERS[ending](path, arrays(step))
    return path
