"""The Fortran module: in codes of any MPI, with any array, and when nobody looks at its errors."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from stream_server.messages.client import End, FieldSpec, TimeSteps
from tests.native.conformance import build
from tests.native.conformance.recording import RecordingServer

PROGRAMS = build.HERE / "programs"
SMALL = FieldSpec(name="u", shape=(4,))
MPI_OPTIONS = {"mpich": (), "openmpi": ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")}
STANDARDS = {
    "f2008": ("-O2",),
    "f2018": ("-std=f2018", "-O3"),
    "default kinds of 8 bytes": ("-fdefault-integer-8", "-fdefault-real-8"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.client_archive(tmp_path_factory.mktemp("fortran") / "plain")


def run(*command: str, connection: Path | str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_")}
    if connection is not None:
        environment["STREAM_CONNECTION"] = str(connection)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", STANDARDS)
def test_the_module_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    build.compile_module(tmp_path, *STANDARDS[name])


@pytest.mark.parametrize(
    ("source", "mpi"),
    [
        ("mpi_f08.f90", "mpich"),
        ("mpi.f90", "openmpi"),
        ("mpif_h.f", "mpich"),
        *(
            pytest.param(*pair, marks=pytest.mark.full)
            for pair in (("mpi_f08.f90", "openmpi"), ("mpi.f90", "mpich"), ("mpif_h.f", "openmpi"))
        ),
    ],
)
def test_a_code_with_any_interface_of_mpi_sends_its_blocks_and_runs_alone(source: str, mpi: str, library: Path) -> None:
    name = f"{Path(source).stem}_{mpi}"
    program = build.fortran(library, name, PROGRAMS / source, compiler=f"mpif90.{mpi}", is_strict=False)
    command = (f"mpirun.{mpi}", "-n", "2", *MPI_OPTIONS[mpi], str(program))
    fields = (FieldSpec(name="u", shape=(2, 2, 6)), FieldSpec(name="v", shape=(2, 4)))
    with RecordingServer(fields) as server:
        for connection in (server.path, "none"):
            done = run(*command, connection=connection)
            assert (done.returncode, done.stdout, done.stderr) == (0, "done\ndone\n", "")
        k, j, i = 1 + np.indices((2, 2, 6))
        for step in range(3):
            assert np.array_equal(server.steps[17, step]["u"], 1000 * step + 100 * i + 10 * j + k)
            assert np.array_equal(server.steps[17, step]["v"], [[10 * step] * 4, [10 * step + 1] * 4])


def test_any_array_can_be_put(library: Path) -> None:
    program = build.fortran(library, "arrays", PROGRAMS / "arrays.f90")
    fields = (
        FieldSpec(name="line", shape=(4,)),
        FieldSpec(name="ids", shape=(4,), dtype="<i8", optional=True),
        FieldSpec(name="mean", shape=(), optional=True),
    )
    with RecordingServer(fields, time_steps=TimeSteps(num=8, first=5, every=2)) as server:
        done = run(str(program), connection=server.path)
        assert (done.returncode, done.stderr) == (0, "")
    lines = [server.steps[17, index]["line"].tolist() for index in range(8)]
    assert lines == [
        [1, 2, 3, 4],
        [10, 20, 30, 40],
        [-1, -2, -3, -4],
        [2, 4, 6, 8],
        [4, 3, 2, 1],
        [12, 22, 32, 42],
        [43, 33, 23, 13],
        [1, 2, 3, 4],
    ]
    assert server.steps[17, 6]["ids"].tolist() == [100, 200, 300, 400]
    assert server.steps[17, 7]["mean"] == 2.5


KINDS = {"real(real32)": "<f4", "real(real64)": "<f8", "integer(int32)": "<i4", "integer(int64)": "<i8"}
EXTENTS = (2, 4, 6, 4)


def every_second_of_every_kind() -> str:
    """A program that puts every second element in each dimension of an array of each type and number of dimensions.

    Of each it puts an empty section first, which is refused.
    """
    declared, put = [], []
    for kind in KINDS:
        for ndim in range(1, len(EXTENTS) + 1):
            name = f"{kind[0]}{kind[-3:-1]}_{ndim}"
            extents = ", ".join(map(str, EXTENTS[:ndim]))
            section, empty = ", ".join(["::2"] * ndim), ", ".join(["::2"] * (ndim - 1) + ["1:0"])
            number = f"{kind.partition('(')[0].replace('integer', 'int')}(i, {kind[kind.index('(') + 1 : -1]})"
            declared.append(f"{kind}, target :: {name}({extents})")
            put += [
                f"{name} = reshape([({number}, i = 1, size({name}))], shape({name}))",
                f"call stream_put(s, '{name}', {name}({empty}), ierr)",
                "if (ierr /= STREAM_ERROR_ARGUMENT) error stop 1",
                f"call stream_put(s, '{name}', {name}({section}))",
            ]
    begin = ["program kinds", "use, intrinsic :: iso_fortran_env", "use stream_client", "implicit none"]
    begin += ["type(stream_simulation) :: s", "integer :: i, ierr"]
    calls = [
        "call stream_connect(s, 0, 1)",
        *put,
        "call stream_send(s, 0)",
        "call stream_finish(s)",
        "end program kinds",
    ]
    return "\n".join([*begin, *declared, *calls]) + "\n"


def test_arrays_of_each_type_and_number_of_dimensions_can_be_put_in_sections(library: Path, tmp_path: Path) -> None:
    source = tmp_path / "kinds.f90"
    source.write_text(every_second_of_every_kind())
    program = build.fortran(library, "kinds", source)
    expected = {
        f"{kind[0]}{kind[-3:-1]}_{ndim}": np.arange(1, np.prod(EXTENTS[:ndim]) + 1, dtype=dtype)
        .reshape(EXTENTS[:ndim], order="F")[(slice(None, None, 2),) * ndim]
        .T
        for kind, dtype in KINDS.items()
        for ndim in range(1, len(EXTENTS) + 1)
    }
    fields = [FieldSpec(name=name, shape=it.shape, dtype=it.dtype.str) for name, it in expected.items()]
    with RecordingServer(fields, time_steps=TimeSteps(num=1)) as server:
        done = run(str(program), connection=server.path)
        assert (done.returncode, done.stderr) == (0, "")
    for name, array in expected.items():
        np.testing.assert_array_equal(server.steps[17, 0][name], array, err_msg=name)


def test_a_field_of_which_nothing_but_zeros_is_left_is_told_once(library: Path) -> None:
    program = build.fortran(library, "vanishing", PROGRAMS / "vanishing.f90")
    with RecordingServer((FieldSpec(name="u", shape=(4,), dtype="<f4"),)) as server:
        done = run(str(program), connection=server.path)
    assert (done.returncode, done.stdout) == (0, "")
    [told] = done.stderr.splitlines()
    assert told.startswith(
        "stream_client, rank 0: field 'u' is sent as float32, in which all its values become 0 (the "
    )


def test_an_error_that_nobody_looks_at_is_told_once_and_leaves_the_simulation_unfinished(library: Path) -> None:
    program = build.fortran(library, "unheeded", PROGRAMS / "unheeded.f90")
    with RecordingServer((SMALL,), num_ranks=1) as server:
        server.parameters = {"viscosity": 0.5}
        done = run(str(program), connection=server.path)
        assert (done.returncode, done.stdout) == (0, "viscosity .500\n")
        told, consequence = done.stderr.splitlines()
        assert told == ("stream_client, rank 0, stream_put: the study has no field 'v', only 'u'")
        assert "goes on without the study" in consequence
        server.wait_until(lambda: len(server.data()) == 2)
    assert not any(isinstance(it, End) for it in server.messages[0])


def test_a_study_that_cannot_be_reached_is_told_once(library: Path) -> None:
    program = build.fortran(library, "unconnected", PROGRAMS / "unheeded.f90")
    done = run(str(program), connection=None)
    assert (done.returncode, done.stdout) == (0, "viscosity .125\n")
    told, _ = done.stderr.splitlines()
    assert told.startswith(
        "stream_client, rank 0, stream_connect: no study to connect to: STREAM_CONNECTION is not set"
    )


def test_errors_are_given_to_those_who_look(library: Path) -> None:
    program = build.fortran(library, "heeded", PROGRAMS / "heeded.f90")
    with RecordingServer((SMALL,), num_ranks=1) as server:
        done = run(str(program), connection=server.path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("-1 ")
    assert lines[1:] == [
        f"0 {lines[0][3:]}",
        "-1 this simulation is connected already: finish or abandon it first",
        "-1 offset and shape of field 'u' must have as many numbers as the field has dimensions",
        "-1 field 'u' must have the shape (4,), but has (3,)",
        *"000",
        "-1 there must be as many parameter_values as parameter_names",
        *"00",
    ]
