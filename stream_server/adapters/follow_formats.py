"""Files of one time step: the arrays that each has, by name."""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.adapters.adios_stream import import_adios2, only_step
from stream_server.adapters.fields import Arrays
from stream_server.adapters.follow_attributes import whole
from stream_server.errors import ConfigError, StreamServerError
from stream_server.extras import extra_packages

Reader = Callable[[Path], AbstractContextManager[Arrays]]
HDF5 = frozenset((".h5", ".hdf5"))
NETCDF = frozenset((".nc", ".nc4", ".cdf"))
ADIOS = frozenset((".bp",))
NETCDF_3, CDF_5 = b"CDF", b"CDF\x05"


class Unreadable(Exception):
    """A file that is not whole yet, or never will be."""


def reader_of(suffix: str) -> Reader:
    """The reader of files with this ending.

    Raises:
        ConfigError: nothing reads such files, or a package for them is missing.
    """
    if suffix in OWN:
        with extra_packages(f"following {suffix}"):
            if suffix in HDF5 | NETCDF:
                import h5py  # type: ignore[import-untyped]  # noqa: F401
            elif suffix in ADIOS:
                import_adios2()
        return OWN[suffix]
    with extra_packages(f"following {suffix}"):
        import meshio  # type: ignore[import-untyped]
    if suffix not in meshio.extension_to_filetypes:
        raise ConfigError(
            f"files that end with {suffix!r} cannot be followed: expected one of {', '.join(OWN)}, .vtk, .vtu, .xdmf "
            "or another format of meshio. Have the solver write one of these, or let it send its fields itself "
            "(docs/guide/clients.md)"
        )
    return _meshio


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read a file within: whatever its reader raises of it is `Unreadable`."""
    try:
        yield
    except (StreamServerError, Unreadable):
        raise
    # A broken file makes readers raise whatever they run into.
    except Exception as error:
        text = str(error).strip()
        raise Unreadable(
            f"{path} cannot be read: {text if len(text) > 1 else 'it ends too early, or is damaged'}"
        ) from error


@contextmanager
def _npy(path: Path) -> Iterator[Arrays]:
    with path.open("rb") as file:
        yield {"": lambda: np.load(file, allow_pickle=False)}


@contextmanager
def _npz(path: Path) -> Iterator[Arrays]:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        yield {name: partial(file.__getitem__, name) for name in file.files}


@contextmanager
def datasets(path: Path, *, swmr: bool = False) -> Iterator[dict[str, Any]]:
    """Those of a file of HDF5, with the names of their groups before theirs."""
    import h5py

    # A lock of ours could keep the solver from opening its own file.
    with h5py.File(path, "r", locking=False, swmr=swmr) as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, it: found.update({name: it}) if isinstance(it, h5py.Dataset) else None)
        yield found


@contextmanager
def variables(path: Path) -> Iterator[dict[str, Any]]:
    """Those of a file of NetCDF, of version 3 or 4."""
    with path.open("rb") as opened:
        head = opened.read(len(CDF_5))
    if head == CDF_5:
        raise ConfigError(
            f"{path} is of CDF-5, the variant of NetCDF 3 for large variables, which cannot be read: expected NetCDF "
            "4, or NetCDF 3 as classic or with 64-bit offsets"
        )
    is_classic = head.startswith(NETCDF_3)
    if not is_classic:
        with datasets(path) as found:
            yield found
        return
    from scipy.io import netcdf_file  # type: ignore[import-untyped]

    # Not mapped into memory: a file that is cut short then would end this process.
    with netcdf_file(path, "r", mmap=False) as file:
        yield dict(file.variables)


@contextmanager
def _hdf5(path: Path) -> Iterator[Arrays]:
    with datasets(path) as found:
        yield {name: partial(whole, it) for name, it in found.items()}


@contextmanager
def _netcdf(path: Path) -> Iterator[Arrays]:
    with variables(path) as found:
        yield {name: partial(whole, it) for name, it in found.items()}


@contextmanager
def _meshio(path: Path) -> Iterator[Arrays]:
    import meshio

    said = io.StringIO()
    # It writes what it thinks of a file to the output, which is the solver's, and ends the process.
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            mesh = meshio.read(path)
        except SystemExit:
            text = " ".join(said.getvalue().split())
            raise Unreadable(f"{path} cannot be read: {text}") from None
    yield of_mesh(mesh.points, mesh.cells, mesh.point_data, mesh.cell_data)


def of_mesh(points: Any, cells: Any, point_data: Mapping[str, Any], cell_data: Mapping[str, Any]) -> Arrays:
    """The data of nodes and cells, those of nodes first where both have a name, beside `points` and `cells`.

    Those of cells are one array for all blocks of cells; `cells` is there if there is one block.
    """
    found = {"points": points}
    if len(cells) == 1:
        found["cells"] = cells[0].data
    for name, blocks in cell_data.items():
        found[name] = np.concatenate([np.asarray(block) for block in blocks])
    return {name: partial(np.asarray, it) for name, it in (found | dict(point_data)).items()}


OWN: Mapping[str, Reader] = {
    ".npy": _npy,
    ".npz": _npz,
    **dict.fromkeys(sorted(HDF5), _hdf5),
    **dict.fromkeys(sorted(NETCDF), _netcdf),
    **dict.fromkeys(sorted(ADIOS), only_step),
}
