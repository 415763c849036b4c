"""The heat equation in C, Fortran, C++ and Python: studies whose codes differ from plain ones by a short diff."""

import re
import runpy
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stream_server.server.replay.record_format import SAMPLES, EntryKind
from stream_server.server.replay.record_reader import RankRecord
from tests.needs import need
from tests.support.launch import alone
from tests.support.runs import LEFT_BY_WORK, Run, run_study

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES = {"c": "heat.c", "fortran": "heat.f90", "cpp": "heat.cpp", "mpi4py": "heat.py"}

CLIENT = "build/stream_client"

NUM_SERVER_RANKS = 2
NUM_SIMULATIONS = 2
NUM_HELD_OUT = 1
NODES = 24
NUM_STEPS = 10
NUM_STEPS_ALONE = 3
ALONE = {"initial": 317.0, "left": 120.0, "right": 180.0, "bottom": 430.0, "top": 490.0}
ROUND_OFF = 1e-9

# Debian's Open MPI: its ranks make way for each other where they outnumber the cores, and it has Fortran.
OPENMPI = {"c": "CC=mpicc.openmpi", "fortran": "FC=mpif90.openmpi"}
MPIRUN = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n"]
# Compiled in half the time.
UNOPTIMISED = {"CMAKE_BUILD_TYPE": "Debug"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

Fields = dict[tuple[int, int], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, in which they are built."""
    need("compilers")
    folder = tmp_path_factory.mktemp("examples")
    for name in ("heat-numpy", *(f"heat-{language}" for language in EXAMPLES)):
        shutil.copytree(CONFIGS / name, folder / name, ignore=LEFT_BY_WORK)
    return folder


@pytest.fixture(scope="module")
def build(examples: Path) -> Callable[[str], Path]:
    """Builds an example as its README says and gives its folder; the client is built once for both Makefiles."""

    @cache
    def build(language: str) -> Path:
        folder = examples / f"heat-{language}"
        if language == "fortran":
            shutil.copytree(build("c") / CLIENT, folder / CLIENT, symlinks=True)
        for argv in how_to_build(language):
            run(folder, argv)
        return folder

    return build


@pytest.fixture(scope="module")
def study(build: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Runs the study of an example on a server of two ranks, once, and records what it was sent."""

    @cache
    def study(language: str) -> Run:
        settings = {"simulation.job.mpirun": [*MPIRUN, "{ranks}"]} if language in OPENMPI else {}
        return run_small(build(language), tmp_path_factory.mktemp(language) / "run", settings)

    return study


def how_to_build(language: str) -> list[list[str]]:
    """The commands of the README, with Open MPI."""
    if language in OPENMPI:
        return [["make", OPENMPI[language]]]
    return [["cmake", "-B", "build"], ["cmake", "--build", "build"]] if language == "cpp" else []


def run_small(folder: Path, output_dir: Path, settings: Mapping[str, Any]) -> Run:
    small = {"study.simulations": NUM_SIMULATIONS, "checkpoint.record": True} | dict(settings)
    return run_study(folder / "study.json", output_dir, num_ranks=NUM_SERVER_RANKS, settings=small, environment=AS_ROOT)


def start(folder: Path, argv: Sequence[str], connection: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv,
        cwd=folder,
        env=alone([]).environment | AS_ROOT | UNOPTIMISED | {"STREAM_CONNECTION": connection},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def run(folder: Path, argv: Sequence[str]) -> str:
    """Run a program in a folder, without a study; returns its output. It must succeed, and a compiler must not warn."""
    done = start(folder, argv, "none")
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def solver(language: str) -> list[str]:
    """The command that runs an example by itself, for a few steps."""
    programs = {
        "c": [*MPIRUN, "4", "build/heat"],
        "fortran": [*MPIRUN, "3", "build/heat"],
        "cpp": ["build/heat"],
        "mpi4py": ["mpirun", "-n", "2", "python", "-m", "mpi4py", "heat.py"],
    }
    return [*programs[language], str(NODES), str(NUM_STEPS_ALONE), *map(str, ALONE.values())]


def mean_temperature(language: str, folder: Path) -> float:
    """The mean temperature that an example prints at its end."""
    (mean,) = re.findall(r"mean temperature (\S+) K", run(folder, solver(language)))
    return float(mean)


def recorded(done: Run) -> tuple[Fields, dict[int, npt.NDArray[np.float64]]]:
    """The temperatures that the server was sent, by simulation and time step, and the parameters by simulation."""
    fields: Fields = {}
    parameters = {}
    for rank in range(NUM_SERVER_RANKS):
        record = RankRecord(done.output_dir / "record", rank)
        for entry in map(record.read, range(len(record))):
            if entry.kind in SAMPLES:
                fields[entry.simulation, entry.time_step] = entry.fields["temperature"]
            elif entry.kind is EntryKind.PARAMETERS:
                parameters[entry.simulation] = entry.parameters
        record.close()
    return fields, parameters


def exact(num_steps: int, **temperatures: float) -> list[npt.NDArray[np.float64]]:
    """The fields of ../heat, which solves the same equations in the sine basis."""
    solve = runpy.run_path(str(CONFIGS / "heat" / "heat.py"))["solve"]
    return list(islice(solve(size=NODES, **temperatures), num_steps))


def assert_trained(done: Run) -> None:
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["simulations"]["finished"] == NUM_SIMULATIONS + NUM_HELD_OUT
    assert done.account["accepted"] == done.account["trained"] == NUM_SIMULATIONS * NUM_STEPS
    assert done.account["duplicates"] == 0


@pytest.mark.parametrize("language", [it if it == "c" else pytest.param(it, marks=pytest.mark.full) for it in EXAMPLES])
def test_a_code_in_each_language_trains_a_server_of_two_ranks(study: Callable[[str], Run], language: str) -> None:
    assert_trained(study(language))


@pytest.mark.full
def test_a_code_of_another_mpi_trains_a_server(build: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "heat-c"
    shutil.copytree(build("c"), folder)
    shutil.copytree(CONFIGS / "heat-numpy", tmp_path / "heat-numpy", ignore=LEFT_BY_WORK)
    (folder / "build" / "heat").unlink()
    run(folder, ["make"])
    # MPICH's ranks do not make way: more of them than cores take seconds for a step.
    assert_trained(run_small(folder, tmp_path / "run", {"simulation.ranks": 2}))


@pytest.mark.parametrize(
    "language", ["c", "fortran", *(pytest.param(it, marks=pytest.mark.full) for it in ("cpp", "mpi4py"))]
)
def test_all_codes_send_the_same_fields(study: Callable[[str], Run], language: str) -> None:
    fields, parameters = recorded(study(language))
    assert len(fields) == (NUM_SIMULATIONS + NUM_HELD_OUT) * NUM_STEPS
    for simulation, values in parameters.items():
        expected = exact(NUM_STEPS, **dict(zip(ALONE, values, strict=True)))
        sent = [fields[simulation, time_step] for time_step in range(NUM_STEPS)]
        np.testing.assert_allclose(sent, expected, rtol=ROUND_OFF)


@pytest.mark.parametrize("language", EXAMPLES)
def test_a_code_that_cannot_reach_its_study_says_why_and_fails(build: Callable[[str], Path], language: str) -> None:
    done = start(build(language), solver(language), "/nowhere")
    assert done.returncode != 0
    assert "cannot read the connection file /nowhere" in done.stderr
    assert "Segmentation" not in done.stderr


@pytest.mark.parametrize("language", EXAMPLES)
def test_the_diff_is_all_that_instrumentation_took(build: Callable[[str], Path], tmp_path: Path, language: str) -> None:
    """Taken back, it leaves a program without our library that computes the same."""
    instrumented = build(language)
    plain = tmp_path / "plain"
    shutil.copytree(instrumented, plain, ignore=LEFT_BY_WORK)
    run(plain, ["patch", "--reverse", "--fuzz=0", "--input=instrument.diff"])
    assert "stream" not in (plain / EXAMPLES[language]).read_text()
    for argv in how_to_build(language):
        run(plain, argv)
    mean = exact(NUM_STEPS_ALONE, **ALONE)[-1].mean()
    assert mean_temperature(language, plain) == pytest.approx(mean, rel=ROUND_OFF)
    assert mean_temperature(language, instrumented) == pytest.approx(mean, rel=ROUND_OFF)


@pytest.mark.parametrize("language", EXAMPLES)
def test_the_readme_shows_the_diff(language: str) -> None:
    folder = CONFIGS / f"heat-{language}"
    assert f"```diff\n{(folder / 'instrument.diff').read_text()}```\n" in (folder / "README.md").read_text()
