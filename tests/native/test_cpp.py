"""The C++ header: types, forms of `put`, exceptions and what becomes of a simulation that is not finished."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from stream_server.messages.client import Data, End, FieldSpec, TimeSteps
from tests.fakes.server import FakeServer
from tests.native.building import STRICT, Installation, tool_environment

PROGRAMS = Path(__file__).parent / "cpp"
STRICTER = ("-std=c++17", *STRICT, "-Wpedantic", "-Wconversion", "-Wshadow")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BLOCK = np.arange(1, 7).reshape(2, 3)
# What types.cpp sends, and the shape in study.json.
SENT = {
    "declared": BLOCK.astype("<f8"),
    "untyped": BLOCK.astype("<f4"),
    "flat": BLOCK.ravel().astype("<i4"),
    "whole": BLOCK.astype("u1"),
    "shaped": BLOCK.astype("<i2"),
    "array": np.arange(1, 4, dtype="<u8"),
    "complex": np.arange(1, 3, dtype="<c16"),
    "narrow": np.arange(1, 3, dtype="<c8"),
    "scalar": np.array(1.5),
    "one": np.array([1], "<i8"),
    "truth": np.array(True),
    "strided": np.array([[7.0, 8, 9], [12, 13, 14]]),
}


@pytest.fixture(scope="module", params=["g++", pytest.param("clang++", marks=pytest.mark.full)])
def types(request: pytest.FixtureRequest, installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("cpp") / "types"
    sources = (PROGRAMS / "types.cpp", PROGRAMS / "other.cpp")
    return installation.build(program, *sources, compiler=request.param, options=STRICTER)


@pytest.fixture(scope="module")
def cases(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("cpp") / "cases"
    return installation.build(program, PROGRAMS / "cases.cpp", compiler="g++", options=(*STRICTER, *SANITIZED))


def run(program: Path, *arguments: str, connection: Path | str) -> subprocess.CompletedProcess[str]:
    """Run it as the launcher does."""
    return subprocess.run(
        [str(program), *arguments],
        env=tool_environment() | {"STREAM_CONNECTION": str(connection)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def said(program: Path, *arguments: str, connection: Path | str) -> str:
    done = run(program, *arguments, connection=connection)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ends(server: FakeServer) -> int:
    return sum(isinstance(message, End) for of_rank in server.messages.values() for message in of_rank)


def test_every_type_and_every_form_of_put_arrives(types: Path) -> None:
    fields = tuple(FieldSpec(name=name, shape=array.shape) for name, array in SENT.items())
    with FakeServer(fields) as server:
        said(types, connection=server.path)
    assert {index for _, index in server.steps} == {0, 1}
    for name, array in SENT.items():
        received = server.steps[7, 1][name]
        assert received.dtype == array.dtype, name
        np.testing.assert_array_equal(received, array)
    assert ends(server) == 2


def test_a_program_that_runs_alone_goes_through(types: Path) -> None:
    said(types, connection="none")


@pytest.mark.parametrize("case", ["exception", "unfinished"])
def test_a_simulation_that_is_not_finished_is_abandoned(cases: Path, case: str) -> None:
    with FakeServer() as server:
        said(cases, case, connection=server.path)
        server.wait_until(lambda: (7, 0) in server.steps)
    assert ends(server) == 0


def test_a_simulation_that_is_moved_to_abandons_its_own_at_once(cases: Path) -> None:
    with FakeServer() as server:
        assert said(cases, "moves", connection=server.path) == "1 1\n1\n"
        server.wait_until(lambda: (7, 0) in server.steps)
    assert ends(server) == 2


def test_send_returns_false_when_the_study_has_ended(cases: Path) -> None:
    with FakeServer() as server:
        process = subprocess.Popen(
            [cases, "end"],
            env=tool_environment() | {"STREAM_CONNECTION": str(server.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        server.wait_until(lambda: len(server.steps) > 10)
        server.do_now(server.stop_study)
        output, _ = process.communicate(timeout=120)
    assert output == "stopped: training converged\n"
    assert process.returncode == 0


def test_mistakes_are_exceptions_with_a_code_after_which_the_simulation_goes_on(cases: Path) -> None:
    with FakeServer() as server:
        lines = said(cases, "mistakes", connection=server.path).splitlines()
    assert lines[0] == "dimensions -1 field 'u': shape and offset differ in their dimensions: 1 and 2"
    assert lines[1] == "values -1 field 'u': 4 values, where 2 are needed"
    assert lines[2].startswith("name -1 the study has no field 'v'")
    assert lines[3].startswith("step -1 ")
    assert lines[4] == "extents -1 a field has at most 8 dimensions"
    assert lines[5] == "sent 1"
    assert lines[6].startswith("finished -1 ")
    assert ends(server) == 2


def test_a_simulation_knows_its_parameters_and_steps_and_can_be_withdrawn(cases: Path) -> None:
    with FakeServer(time_steps=TimeSteps(num=5, first=10, every=2)) as server:
        server.attempt = 3
        facts, mistake, sent = said(cases, "facts", connection=server.path).splitlines()
    assert facts == "7 3 0.5 5 10 2"
    assert mistake.startswith("parameter -1 ")
    assert sent == "sent 0"
    assert [message.reason for message in server.invalidated] == ["not worth it"]


def test_a_program_attaches_with_its_own_parameters(cases: Path) -> None:
    with FakeServer() as server:
        output = said(cases, "attaching", str(server.path), connection="/nowhere")
    assert output == "simulation 12\n"
    (hello,) = server.hellos
    assert dict(hello.parameters or {}) == {"viscosity": 0.25, "speed": 2.0}
    assert any(isinstance(message, Data) for of_rank in server.messages.values() for message in of_rank)


def test_a_wrong_connection_file_is_an_exception_of_the_constructor(cases: Path) -> None:
    done = run(cases, "facts", connection="/nowhere/connection.json")
    assert done.returncode == 1
    assert done.stdout.startswith("error -2 ")
    assert "/nowhere/connection.json" in done.stdout
