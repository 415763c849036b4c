"""Finding, building and installing the native library, in the ways that docs/guide/clients.md and melissa.md show."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from msgspec.structs import replace

from stream_server.messages.client import FieldSpec, TimeSteps
from stream_server.server.commands.cli import main
from tests.fakes.server import FakeServer
from tests.native.building import NATIVE, REPOSITORY, STRICT, Installation, run, tool_environment

PAGES = "".join((REPOSITORY / "docs" / "guide" / name).read_text() for name in ("clients.md", "melissa.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block of code whose first line is the name of its file.
NAMED = re.compile(r"^(?:/\*|//|!|#) (\S+\.\w+|Makefile)(?: \*/)?\n")
PROGRAMS = ("solver_c", "solver_cpp", "solver_fortran")


def section(heading: str) -> str:
    """The text below a heading of the pages, down to the next one."""
    _, _, rest = PAGES.partition(f"\n{heading}\n")
    assert rest, f"the pages have no {heading}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def shell(heading: str) -> str:
    """The commands of a section."""
    return "\n".join(code for language, code in FENCE.findall(section(heading)) if language == "sh")


def run_shell(heading: str, cwd: Path, prefix: Path) -> None:
    environment = tool_environment() | {"PREFIX": str(prefix)}
    run(["sh", "-eu", "-c", shell(heading)], cwd=cwd, environment=environment)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The library, installed by the commands on the page."""
    folder = tmp_path_factory.mktemp("page")
    run_shell("## Building", folder, folder / "prefix")
    return Installation(folder / "prefix")


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    """A folder with the files on the page."""
    for _, code in FENCE.findall(PAGES):
        if name := NAMED.match(code):
            (tmp_path / name[1]).write_text(code)
    return tmp_path


def assert_runs_alone(words: list[str]) -> None:
    run(words, cwd=Path("/"), environment=tool_environment() | {"STREAM_CONNECTION": "none"})


def consume(folder: Path, lists: str, *options: str, environment: dict[str, str] | None = None) -> Path:
    """Build the CMake project of `lists`; gives the folder it is built in."""
    (folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.16)\n{lists}")
    run(["cmake", "-S", ".", "-B", "built", *options], cwd=folder, environment=environment)
    run(["cmake", "--build", "built", "--parallel", "2"], cwd=folder, environment=environment)
    return folder / "built"


def test_the_command_tells_where_the_sources_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--native-path"]) == 0
    assert Path(capsys.readouterr().out.strip()) == NATIVE


def test_telling_where_the_sources_are_loads_neither_torch_nor_mpi() -> None:
    code = (
        "import sys; from stream_server.server.commands.cli import main; main(['--native-path']); print(*sys.modules)"
    )
    modules = run([sys.executable, "-c", code], cwd=REPOSITORY).split()
    assert {"torch", "mpi4py"}.isdisjoint(modules)


@pytest.mark.full
def test_package_library_and_pkg_config_have_one_version(installation: Installation) -> None:
    header = (NATIVE / "include" / "stream_client.h").read_text()
    assert f'#define STREAM_CLIENT_VERSION "{version("stream-server")}"' in header
    told = run(["pkg-config", "--modversion", "stream_client"], cwd=NATIVE, environment=installation.environment)
    assert told.strip() == version("stream-server")


@pytest.mark.full
def test_the_library_exports_its_interface_and_nothing_else(installation: Installation) -> None:
    for library, prefix in (("stream_client", "stream_"), ("melissa_api", "melissa_")):
        symbols = run(["nm", "-D", "--defined-only", str(installation.lib / f"lib{library}.so")], cwd=NATIVE)
        names = {line.split()[-1] for line in symbols.splitlines()}
        assert names
        assert {name for name in names if not name.startswith(prefix)} == set()


@pytest.mark.full
def test_the_programs_on_the_page_are_built_with_cmake(installation: Installation, solver: Path) -> None:
    run_shell("### CMake", solver, installation.prefix)
    for program in PROGRAMS:
        assert_runs_alone([str(solver / "build" / "solver" / program)])


@pytest.mark.full
@pytest.mark.parametrize("heading", ["### pkg-config", "### A plain Makefile"])
def test_the_programs_on_the_page_are_built_without_cmake(
    installation: Installation, solver: Path, heading: str
) -> None:
    run_shell(heading, solver, installation.prefix)
    for program in PROGRAMS:
        assert_runs_alone([str(solver / program)])


def test_the_python_program_on_the_page_runs(solver: Path) -> None:
    assert_runs_alone([sys.executable, str(solver / "solver.py")])


def test_a_melissa_code_is_built_as_the_page_says(installation: Installation, tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "tests" / "native" / "melissa" / "heat.c", tmp_path)
    run_shell("## C and Fortran codes", tmp_path, installation.prefix)
    assert_runs_alone(["mpirun", "-n", "2", str(tmp_path / "heatc"), "100"])


def test_a_python_code_runs_with_the_module_on_the_page(solver: Path) -> None:
    (solver / "heat.py").write_text(
        "import numpy as np\n"
        "from mpi4py.MPI import COMM_WORLD as comm\n"
        "from melissa_api import *\n"
        "melissa_init('a', 3, comm)\n"
        "melissa_init('b', 2, comm)\n"
        "for step in range(4):\n"
        "    melissa_send('a', np.full(3, step + comm.rank))\n"
        "    melissa_send('b', np.full(2, step))\n"
        "melissa_finalize()\n"
    )
    command = ["mpirun", "-n", "2", sys.executable, str(solver / "heat.py")]
    assert_runs_alone(command)
    with FakeServer(
        (FieldSpec(name="a", shape=(6,)), FieldSpec(name="b", shape=(4,))), time_steps=TimeSteps(num=4, first=1)
    ) as server:
        connection = solver / "connection.json"
        replace(server.connection, simulation=7, attempt=0).write(connection)
        run(command, cwd=solver, environment=tool_environment() | {"STREAM_CONNECTION": str(connection)})
    assert sorted(server.steps) == [(7, index) for index in range(4)]
    assert server.steps[7, 3]["a"].tolist() == [3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(("language", "source"), [("C", "heat.c"), ("Fortran", "names.f90")])
def test_a_melissa_project_finds_the_package_that_it_knows(
    installation: Installation, tmp_path: Path, language: str, source: str
) -> None:
    shutil.copy(REPOSITORY / "tests" / "native" / "melissa" / source, tmp_path)
    built = consume(
        tmp_path,
        f"project(heat LANGUAGES {language})\n"
        "find_package(Melissa 0.7 CONFIG REQUIRED)\n"
        f"add_executable(heat {source})\n"
        "target_include_directories(heat PRIVATE ${MELISSA_INCLUDE_DIR})\n"
        "target_link_libraries(heat melissa)\n",
        environment=installation.environment,
    )
    assert_runs_alone([str(built / "heat"), "100"])


def test_a_project_of_fortran_alone_finds_the_package(installation: Installation, solver: Path) -> None:
    built = consume(
        solver,
        "project(solver LANGUAGES Fortran)\n"
        "find_package(StreamClient 0.1 REQUIRED COMPONENTS fortran melissa_api)\n"
        "add_executable(solver solver.f90)\n"
        "target_link_libraries(solver StreamClient::fortran)\n",
        environment=installation.environment,
    )
    assert_runs_alone([str(built / "solver")])


def test_a_program_may_be_linked_with_the_static_library(installation: Installation, solver: Path) -> None:
    built = consume(
        solver,
        "project(solver LANGUAGES C)\n"
        "find_package(StreamClient REQUIRED)\n"
        "add_executable(solver solver.c)\n"
        "target_link_libraries(solver StreamClient::stream_client_static)\n",
        environment=installation.environment,
    )
    assert "libstream_client" not in run(["ldd", str(built / "solver")], cwd=built)
    assert_runs_alone([str(built / "solver")])


def test_a_missing_component_is_an_error(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(solver LANGUAGES C)\n"
        "find_package(StreamClient REQUIRED COMPONENTS fortran)\n"
    )
    configured = subprocess.run(
        ["cmake", "-S", ".", "-B", "built"],
        cwd=tmp_path,
        env=installation.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert configured.returncode != 0
    assert "no component fortran" in configured.stderr


@pytest.mark.full
def test_the_library_can_be_part_of_another_build(solver: Path) -> None:
    """Here with clang, with warnings as errors, and where there is no MPI."""
    built = consume(
        solver,
        "project(solver LANGUAGES C Fortran)\n"
        f'add_subdirectory("{NATIVE}" stream_client)\n'
        "add_executable(solver solver.c)\n"
        "target_link_libraries(solver StreamClient::stream_client_static)\n"
        "add_executable(solver_fortran solver.f90)\n"
        "target_link_libraries(solver_fortran StreamClient::fortran)\n"
        "if(TARGET StreamClient::melissa_api OR NOT TARGET StreamClient::melissa_api_no_mpi)\n"
        "    message(FATAL_ERROR wrong)\n"
        "endif()\n",
        "-DCMAKE_C_COMPILER=clang",
        f"-DCMAKE_C_FLAGS={' '.join(STRICT)}",
        "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON",
    )
    for program in ("solver", "solver_fortran"):
        assert_runs_alone([str(built / program)])
