"""Files of one time step, in each format."""

import builtins
import shutil
from pathlib import Path
from typing import Any

import adios2
import h5py
import numpy as np
import openpmd_api as openpmd
import pytest
from scipy.io import netcdf_file

from stream_server.adapters.fields import FieldsOfFiles
from stream_server.adapters.follow_attributes import row
from stream_server.adapters.follow_formats import Unreadable, reader_of, reading
from stream_server.errors import ConfigError
from tests.adapters.files import FIELDS, POINTS, WRITERS, arrays, write


def read(path: Path) -> dict[str, Any]:
    with reading(path), reader_of(path.suffix)(path) as found:
        return {name: np.asarray(get()) for name, get in found.items()}


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_has_the_arrays_that_were_written(tmp_path: Path, ending: str) -> None:
    found = read(write(tmp_path, ending, 3))
    if ending == ".npy":
        found = {"u": found[""], "velocity": arrays(3)["velocity"]}
    for name in FIELDS:
        assert np.array_equal(found[name], arrays(3)[name])


@pytest.mark.parametrize("ending", [".vtk", ".vtu", ".xdmf"])
def test_a_mesh_is_beside_its_data(tmp_path: Path, ending: str) -> None:
    found = read(write(tmp_path, ending, 0))
    assert np.array_equal(found["points"], POINTS)
    assert found["cells"].tolist() == [[0, 1, 2], [1, 2, 3]]


def shorten(path: Path) -> None:
    # With a whole index and half of the data ADIOS2 waits for the rest; it writes the index last.
    file = path / "md.idx" if path.suffix == ".bp" else path
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_that_was_cut_short_is_unreadable(
    tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, ending, 0)
    shorten(path)
    with pytest.raises(Unreadable, match=f"step_000{ending} cannot be read: .{{4}}"):
        read(path)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("ending", WRITERS)
def test_a_file_of_another_format_is_unreadable(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"step_0{ending}"
    path.write_text("no such thing\n")
    with pytest.raises(Unreadable, match="cannot be read"):
        read(path)


def test_a_file_that_is_gone_is_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path, ".bp", 0)
    shutil.rmtree(path)
    with pytest.raises(Unreadable, match="cannot be read"):
        read(path)


@pytest.mark.parametrize("engine", ["BP4", "BP5"])
def test_a_file_of_several_steps_of_adios_is_refused(tmp_path: Path, engine: str) -> None:
    io = adios2.Adios().declare_io("writer")
    io.set_engine(engine)
    with adios2.Stream(io, str(tmp_path / "all_1.bp"), "w") as stream:
        for step in range(2):
            stream.begin_step()
            stream.write("t", float(step))
            stream.end_step()
    with pytest.raises(ConfigError, match="has 2 time steps: expected one in each file, or stream-adios"):
        read(tmp_path / "all_1.bp")


@pytest.mark.parametrize("ending", [".bp", ".h5"])
def test_openpmd_may_write_a_file_for_each_iteration(tmp_path: Path, ending: str) -> None:
    series = openpmd.Series(f"{tmp_path}/out_%T{ending}", openpmd.Access_Type.create)
    values = np.arange(12.0).reshape(4, 3)
    for number in (10, 20):
        iteration = series.write_iterations()[number]
        component = iteration.meshes["E"]["x"]
        component.reset_dataset(openpmd.Dataset(values.dtype, values.shape))
        component.store_chunk(values + number)
        iteration.close()
    series.close()
    for number in (10, 20):
        path = tmp_path / f"out_{number}{ending}"
        with reading(path), reader_of(ending)(path) as found:
            _, fields = FieldsOfFiles(["Ex=meshes/E/x"], {}).take(found, path, is_first=True)
        assert np.array_equal(fields["Ex"], values + number)


def test_an_unknown_ending_says_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"'\.foo' cannot be followed: expected one of \.npy, .* \.vtk"):
        reader_of(".foo")


@pytest.mark.parametrize(("ending", "package"), [(".h5", "h5py"), (".bp", "adios2"), (".vtu", "meshio")])
def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, ending: str, package: str) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ConfigError, match=rf"following \{ending} needs {package}.*pip install '\.\[(follow|hdf5|adios)\]'"
    ):
        reader_of(ending)


def test_packed_numbers_of_netcdf_are_unpacked_and_those_that_are_none_are_masked(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "step_0.nc", "w") as file:
        file["u"] = np.array([1, 2, -9], dtype=np.int16)
        file["u"].attrs.update({"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(-9)})
    path = tmp_path / "step_0.nc"
    with reader_of(".nc")(path) as found:
        assert found["u"]().tolist() == [10.5, 11.0, None]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"missing_value": np.int16(2)}, [1, None, -9]),
        ({"missing_value": np.array([1, 2], dtype=np.int16)}, [None, None, -9]),
        ({"valid_min": np.int16(0)}, [1, 2, None]),
        ({"valid_range": np.array([-10, 1], dtype=np.int16)}, [1, None, -9]),
        ({"scale_factor": np.array([0.5]), "add_offset": np.array([1.0])}, [1.5, 2, -3.5]),
    ],
)
def test_numbers_that_attributes_call_none_are_masked(
    tmp_path: Path, attributes: dict[str, Any], expected: list[float | None]
) -> None:
    with h5py.File(tmp_path / "step_0.nc", "w") as file:
        file["u"] = np.array([1, 2, -9], dtype=np.int16)
        file["u"].attrs.update(attributes)
    with reader_of(".nc")(tmp_path / "step_0.nc") as found:
        assert found["u"]().tolist() == expected


def test_attributes_of_one_number_keep_the_shape(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.nc", "w") as file:
        file["u"] = np.array([1, 2], dtype=np.int16)
        file["u"].attrs["scale_factor"] = np.array([0.5])
        assert row(file["u"], 0).shape == ()


@pytest.mark.parametrize("type_of", [np.int16, np.float32])
def test_what_nobody_wrote_is_masked(tmp_path: Path, type_of: Any) -> None:
    fill = {np.int16: -32767, np.float32: 9.969209968386869e36}[type_of]
    values = np.array([1, fill], dtype=type_of)
    with netcdf_file(tmp_path / "step_3.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("u", type_of, ("x",))[:] = values
    with h5py.File(tmp_path / "step_4.nc", "w") as file:
        file.create_dataset("u", data=values, fillvalue=type_of(fill))
    # One of HDF5 alone, in which the number is a number.
    with h5py.File(tmp_path / "step_5.h5", "w") as file:
        file["u"] = values
    assert [read_masked(tmp_path / name)[1] is None for name in ("step_3.nc", "step_4.nc", "step_5.h5")] == [1, 1, 0]


def read_masked(path: Path) -> list[float | None]:
    with reader_of(path.suffix)(path) as found:
        return found["u"]().tolist()


def test_numbers_that_are_not_what_they_look_like_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "step_0.nc", "w") as file:
        file["u"] = np.array([-1], dtype=np.int8)
        file["u"].attrs["_Unsigned"] = "true"
    with pytest.raises(ConfigError, match="u has the attribute _Unsigned, by which"):
        read(tmp_path / "step_0.nc")


def test_the_variant_of_netcdf_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step_0.nc"
    path.write_bytes(b"CDF\x05" + bytes(100))
    with pytest.raises(ConfigError, match=r"step_0\.nc is of CDF-5, .* expected NetCDF 4, or NetCDF 3"):
        read(path)
