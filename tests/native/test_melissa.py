"""Codes instrumented for Melissa, as their users wrote them, run in a study without a change."""

import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from stream_server.messages.client import End, FieldSpec, TimeSteps
from tests.fakes.server import FakeServer
from tests.native.building import MPIS, NATIVE, STRICT, Installation, tool_environment
from tests.support.runs import Run, run_study

CODES = Path(__file__).parent / "melissa"
STUDY = CODES / "study.json"
NUM_SIMULATIONS = 2
NUM_STEPS = 9
FIELDS = (FieldSpec(name="heat", shape=(13,)), FieldSpec(name="heat_flux", shape=(6, 4)))
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
GOES_ON = "The simulation goes on, but the study gets nothing more of this rank."


@pytest.fixture(scope="module")
def build(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Path]:
    """`build("heat.c", "mpicc.mpich", "melissa_api")`; a program is built once."""
    folder = tmp_path_factory.mktemp("codes")

    def build(source: str, compiler: str, library: str) -> Path:
        program = folder / f"{source}-{compiler}"
        if program.exists():
            return program
        if library == "melissa_api" and compiler.endswith(".openmpi"):
            return with_openmpi(installation, program, CODES / source, compiler)
        # A code does not use all constants that mpif.h and melissa_api.f90 declare.
        strict = (*STRICT, "-Wno-unused-parameter") if source.endswith((".f", ".f90")) else STRICT
        return installation.build(program, CODES / source, compiler=compiler, options=(*strict, f"-l{library}"))

    return build


def with_openmpi(installation: Installation, program: Path, source: Path, compiler: str) -> Path:
    """The installed libmelissa_api is MPICH's: here its sources are compiled along."""
    objects = []
    for file in sorted((NATIVE / "melissa").glob("*.c")):
        objects.append(program.with_name(f"{file.stem}.o"))
        options = (*STRICT, "-std=c11", "-c")
        installation.build(objects[-1], file, compiler="mpicc.openmpi", options=options)
    return installation.build(program, source, *objects, compiler=compiler)


def mpirun(mpi: str, num_ranks: int, *words: str) -> list[str]:
    options = ["--oversubscribe", "--bind-to", "none"] if mpi == "openmpi" else []
    return [f"mpirun.{mpi}", "-n", str(num_ranks), *options, *words]


def study(folder: Path, command: list[str], **settings: Any) -> Run:
    return run_study(
        STUDY,
        folder / "run",
        num_ranks=2,
        settings={"study.simulations": NUM_SIMULATIONS, "simulation.command": [*command, "{initial}"], **settings},
        environment=AS_ROOT,
    )


def assert_complete(run: Run) -> None:
    """The strict server of the study has seen every value of every step."""
    assert run.exit_code == 0, run.output
    assert run.report["balanced"] is True
    assert run.report["simulations"]["finished"] == NUM_SIMULATIONS
    assert run.account["trained"] == run.account["expected"] == NUM_SIMULATIONS * NUM_STEPS


@pytest.mark.parametrize(
    ("mpi", "num_ranks", "source", "compiler"),
    [
        pytest.param("mpich", 3, "heat.c", "mpicc", marks=pytest.mark.full),
        pytest.param("openmpi", 2, "heat.c", "mpicc", marks=pytest.mark.full),
        pytest.param("mpich", 2, "heat.f90", "mpif90", marks=pytest.mark.full),
        ("mpich", 3, "heat.f", "mpif90"),
    ],
)
def test_a_parallel_code_runs_unmodified(
    build: Callable[[str, str, str], Path], tmp_path: Path, mpi: str, num_ranks: int, source: str, compiler: str
) -> None:
    program = build(source, f"{compiler}.{mpi}", "melissa_api")
    assert_complete(study(tmp_path, mpirun(mpi, num_ranks, str(program))))


@pytest.mark.full
def test_a_code_without_mpi_runs_unmodified(build: Callable[[str, str, str], Path], tmp_path: Path) -> None:
    program = build("heat_no_mpi.c", "gcc", "melissa_api_no_mpi")
    assert_complete(study(tmp_path, [str(program)]))


@pytest.mark.full
def test_a_code_of_one_process_that_reads_mpi_appnum_runs_with_an_mpirun(
    build: Callable[[str, str, str], Path], tmp_path: Path
) -> None:
    program = build("appnum.c", "mpicc.mpich", "melissa_api")
    assert_complete(study(tmp_path, [str(program)], **{"simulation.job.mpirun": ["mpirun.mpich"]}))


def run_by_hand(command: list[str], connection: Path | str) -> str:
    """Run a code outside a study; gives what it printed."""
    environment = tool_environment() | AS_ROOT | {"STREAM_CONNECTION": str(connection)}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def launched(server: FakeServer, folder: Path) -> Path:
    """The connection file of simulation 7, as the launcher would write it."""
    path = folder / "connection.json"
    replace(server.connection, simulation=7, attempt=0).write(path)
    return path


@pytest.mark.parametrize(
    ("mistake", "message", "num_told"),
    [
        ("early", "melissa_send was called before melissa_init, or after melissa_finalize", 2),
        ("name", "the name 'cold' does not begin with that of a field in study.json: 'heat', 'heat_flux'.", 1),
        ("size", "melissa_init needs the name of a field and a size of 0 or more", 1),
        ("total", "the field 'heat' has 13 values in study.json, but the sizes that the 2 ranks pass", 2),
        ("rows", "of the field 'heat_flux', which are no whole rows of 4 values.", 2),
        ("twice", "melissa_init was called twice for the field 'heat' of study.json: with the size", 2),
        ("alike", "the names 'heat' and 'heat_X' both begin with the field 'heat' of study.json.", 2),
        ("component", "write velocity_X there for velocity[X].", 2),
        ("other", "melissa_send was called for 'heat_flux', for which melissa_init was not", 2),
        ("required", "field 'heat_flux' is missing", 2),
        ("never", "field 'heat_flux' is missing", 2),
    ],
)
def test_a_mistake_is_told_once_and_the_simulation_goes_on(
    build: Callable[[str, str, str], Path], tmp_path: Path, mistake: str, message: str, num_told: int
) -> None:
    program = build("mistaken.c", "mpicc.mpich", "melissa_api")
    with FakeServer(FIELDS) as server:
        output = run_by_hand(mpirun("mpich", 2, str(program), mistake), launched(server, tmp_path))
    assert sorted(line for line in output.splitlines() if "is done" in line) == ["rank 0 is done", "rank 1 is done"]
    assert output.count(message) == output.count(GOES_ON) == num_told
    assert not any(isinstance(it, End) for of_rank in server.messages.values() for it in of_rank)


def test_a_code_runs_alone(build: Callable[[str, str, str], Path]) -> None:
    program = build("heat.c", "mpicc.mpich", "melissa_api")
    assert run_by_hand(mpirun("mpich", 2, str(program), "0"), "none") == ""


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_may_have_nothing_of_a_field(build: Callable[[str, str, str], Path], tmp_path: Path, mpi: str) -> None:
    """And steps are counted in the labels of the study, with those fields that were sent."""
    program = build("heat.c", f"mpicc.{mpi}", "melissa_api")
    fields = (*FIELDS, FieldSpec(name="energy", shape=(1,), optional=True))
    with FakeServer(fields, time_steps=TimeSteps(num=9, first=10, every=10)) as server:
        run_by_hand(mpirun(mpi, 3, str(program), "0"), launched(server, tmp_path))
    assert {index for _, index in server.steps} == set(range(9))
    for index in range(9):
        sample = server.steps[7, index]
        np.testing.assert_array_equal(sample["heat"], 1000 * (index + 1) + np.arange(13))
        assert ("energy" in sample) == (index % 2 == 1)


@pytest.mark.parametrize(
    "words",
    [
        ("velocity_X", "velocity_Y", "velocity_Z"),
        ("once", "velocity_X", "velocity_Y", "velocity_Z"),
        ("velocity[X]", "velocity[Y]", "velocity[Z]"),
    ],
    ids=("in every step", "in the first step", "components"),
)
def test_a_code_initialises_its_fields_as_it_sends_them(
    build: Callable[[str, str, str], Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    program = build("late.c", "mpicc.mpich", "melissa_api")
    fields = tuple(FieldSpec(name=f"velocity_{component}", shape=(12,)) for component in "XYZ")
    fields = (*fields, FieldSpec(name="energy", shape=(12,), optional=True))
    with FakeServer(fields, time_steps=TimeSteps(num=3)) as server:
        assert run_by_hand(mpirun("mpich", 2, str(program), *words), launched(server, tmp_path)) == ""
    assert sorted(server.steps) == [(7, 0), (7, 1), (7, 2)]
    for index in range(3):
        sample = server.steps[7, index]
        assert set(sample) == {field.name for field in fields[:3]}
        for component, values in enumerate(sample.values()):
            np.testing.assert_array_equal(values, 100 * index + 1000 * component + np.arange(12))


@pytest.mark.parametrize(
    ("source", "compiler"), [("names.c", "mpicc.mpich"), ("names.f90", "mpif90.mpich"), ("names.f", "mpif90.mpich")]
)
def test_headers_library_and_constants_have_melissas_names(
    build: Callable[[str, str, str], Path], source: str, compiler: str
) -> None:
    program = build(source, compiler, "melissa")
    assert run_by_hand([str(program)], "none").split() == ["0", "0", "0", "1", "2"]


def test_a_code_goes_on_when_the_study_has_ended(build: Callable[[str, str, str], Path]) -> None:
    program = build("heat_no_mpi.c", "gcc", "melissa_api_no_mpi")
    with FakeServer(FIELDS) as server:
        server.credit, server.withholds_acks = 1, True
        environment = tool_environment() | {"STREAM_CONNECTION": str(server.path)}
        process = subprocess.Popen(
            [program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        server.wait_until(lambda: len(server.steps) == 2)
        server.do_now(server.stop_study)
        output, _ = process.communicate(timeout=120)
        assert len(server.steps) == 2
    assert process.returncode == 0
    assert output.splitlines() == [f"Melissa {version('stream-server')}"]


def test_no_memory_is_lost_or_misused(build: Callable[[str, str, str], Path]) -> None:
    program = build("heat_no_mpi.c", "gcc", "melissa_api_no_mpi")
    valgrind = ["valgrind", "--quiet", "--leak-check=full", "--error-exitcode=9"]
    with FakeServer(FIELDS) as server:
        run_by_hand([*valgrind, str(program)], server.path)
    assert len(server.steps) == NUM_STEPS
