"""OpenFOAM's function object: Debian's icoFoam sends each time step once, and as the files of the case have it."""

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stream_server.errors import EXIT_SAVED
from stream_server.server.replay.record_format import SAMPLES
from stream_server.server.replay.record_reader import RankRecord
from tests.needs import need
from tests.support import openfoam
from tests.support.built_once import built_once
from tests.support.failpoints import failpoints
from tests.support.launch import alone
from tests.support.runs import LEFT_BY_WORK, Run, run_study, start_study

CONFIG = Path(__file__).parents[2] / "configs" / "openfoam"
LIBRARY = "libstreamOpenFOAM.so"
NUM_RANKS = 2
NUM_STEPS = 10
NUM_SIMULATIONS = 3
LIMIT_S = 240
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SMALL: dict[str, Any] = {
    "study.simulations": NUM_SIMULATIONS - 1,
    "validation.simulations": 1,
    "launcher.max_running": 1,
    "buffer.watermark": 4,
    "training.batch_size": 5,
    "checkpoint.record": True,
}
DECOMPOSED = {"simulation.command": ["sh", "Allrun", "2"]}
# Room for a mesh that grows.
RAGGED = {"study.fields.p": [{"max": 500}]}
# The case writes what it sends, to the last digit.
WRITTEN = {
    "writeInterval       1000000;": "writeInterval       20;\nwritePrecision      17;",
    "writeFormat         binary;": "writeFormat         ascii;",
}
# As many time steps in a twentieth of the solver's: ranks that wait for each other are slow on few cores.
SHORT = {
    "endTime             0.5;": "endTime             0.025;",
    "writeInterval       20;": "writeInterval       1;",
    "writeInterval   20;": "writeInterval   1;",
}
# Another function object, which stands before ours, computes a tensor for each cell.
GRADIENT = {
    "functions\n{": """functions
{
    gradient
    {
        type            grad;
        libs            ("libfieldFunctionObjects.so");
        field           U;
        result          gradU;
        writeControl    writeTime;
    }""",
    "(U p);": "(U p gradU);",
}
SHAPES = {"U": (20, 20, 3), "p": (20, 20), "gradU": (400, 9)}
# A rank of the first attempt comes to a pipe in the place of a file, half-way, and is killed when it opens it.
DIES = {
    "decomposePar\n": """decomposePar
if [ "$STREAM_SIMULATION_ID$STREAM_ATTEMPT" = 00 ]; then
    mkdir processor0/0.015
    mkfifo processor0/0.015/U
    (exec 3< processor0/0.015/U; kill -9 $(pgrep -P $$ icoFoam | head -n 1)) &
fi
"""
}

Fields = dict[tuple[int, int], dict[str, npt.NDArray[Any]]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The function object, built as the guide says."""
    need("OpenFOAM")
    return built_once(openfoam.ADAPTER, [], tmp_path_factory.mktemp("openfoam") / "build", openfoam.build) / LIBRARY


@pytest.fixture
def study(library: Path, tmp_path: Path) -> Path:
    """A copy of the example with its function object."""
    folder = tmp_path / "openfoam"
    shutil.copytree(CONFIG, folder, ignore=LEFT_BY_WORK)
    (folder / "build").mkdir()
    (folder / "build" / LIBRARY).symlink_to(library)
    return folder


def change(file: Path, changes: dict[str, str]) -> None:
    """Replace texts that must be there."""
    text = file.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def recorded(done: Run) -> Fields:
    """The samples that the server has, by simulation and time step; each must have come once."""
    fields: Fields = {}
    for rank in range(NUM_RANKS):
        record = RankRecord(done.output_dir / "record", rank)
        for entry in map(record.read, range(len(record))):
            if entry.kind in SAMPLES:
                assert (entry.simulation, entry.time_step) not in fields
                fields[entry.simulation, entry.time_step] = dict(entry.fields)
        record.close()
    return fields


def assert_sent_as_written(done: Run) -> None:
    """Each time step of each simulation has come once, and is what the files of the last attempt say."""
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["simulations"]["finished"] == NUM_SIMULATIONS
    assert done.account["accepted"] == (NUM_SIMULATIONS - 1) * NUM_STEPS
    sent = recorded(done)
    assert len(sent) == NUM_SIMULATIONS * NUM_STEPS
    for simulation, num in done.attempts.items():
        case = done.output_dir / "simulations" / str(simulation) / f"attempt-{num - 1}"
        if (case / "processor0").exists():
            openfoam.reconstruct(case)
        for field in sent[simulation, 0]:
            shape = SHAPES[field]
            expected = np.reshape(openfoam.written(case, field), (NUM_STEPS, *shape))
            assert expected.std() > 0
            got = [sent[simulation, step][field].reshape(shape) for step in range(NUM_STEPS)]
            np.testing.assert_array_equal(got, expected)


def run(study: Path, settings: dict[str, Any], **options: Any) -> Run:
    environment = AS_ROOT | options.pop("environment", {})
    output_dir = study.parent / "run"
    settings = SMALL | settings
    return run_study(
        study / "study.json", output_dir, settings=settings, environment=environment, limit_s=LIMIT_S, **options
    )


def test_a_network_learns_from_an_unchanged_solver_what_its_files_say(study: Path) -> None:
    change(study / "controlDict", WRITTEN | GRADIENT)
    settings = {
        "study.fields.gradU": SHAPES["gradU"],
        "training.draws_per_sample": 30,
        "validation.every_batches": 20,
    }
    done = run(study, settings, num_ranks=NUM_RANKS)
    assert_sent_as_written(done)
    losses = [entry["loss"] for entry in done.report["validation"]]
    assert losses[-1] < losses[0] / 2


def test_a_decomposed_case_whose_solver_and_server_are_killed_sends_the_cells_of_the_whole_once(
    study: Path, tmp_path: Path
) -> None:
    change(study / "controlDict", WRITTEN)
    change(study / "controlDict", SHORT)
    change(study / "Allrun", DIES)
    met = tmp_path / "met"
    settings = {
        **DECOMPOSED,
        **RAGGED,
        "server.ranks": NUM_RANKS,
        "checkpoint.every_batches": 1,
        "training.draws_per_sample": 4,
    }
    point = "checkpoint.renamed=kill@2"
    done = run(study, settings, program="stream-launcher", mpi=None, environment=failpoints(met, point))
    assert list(met.iterdir()), f"{done.output}\n{done.launcher_log}"
    assert done.report["restarts"] == 1
    assert done.attempts[0] > 1
    assert_sent_as_written(done)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_signal_ends_a_study_of_decomposed_cases_and_leaves_no_solver(study: Path, number: signal.Signals) -> None:
    change(study / "controlDict", {"endTime             0.5;": "endTime             5000;"})
    settings = SMALL | DECOMPOSED | {"study.time_steps": 100_000, "server.ranks": NUM_RANKS}
    options: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "environment": AS_ROOT}
    with start_study(study / "study.json", study.parent / "run", settings=settings, **options) as live:
        # Some time steps were sent.
        live.wait_until(lambda: any(re.search(r"Time = 0\.[1-9]", live.log(simulation)) for simulation in range(3)))
        assert [it.name() for it in live.processes()].count("icoFoam") == 2
        live.process.send_signal(number)
        assert live.end().exit_code == EXIT_SAVED


# What a case of its own says that runs without a study, on so many ranks, changed so.
MISTAKES: dict[str, tuple[int, dict[str, str], str]] = {
    "no such field": (
        1,
        {"fields          (U p);": "fields          (U T);"},
        r"stream: fields must be volume fields of the case, which at time 0\.05 are .*- but T is none of them$",
    ),
    "no such field, decomposed": (
        2,
        {"fields          (U p);": "fields          (phi);"},
        r"fields must be volume fields .*\bU\b.*but phi is none of them",
    ),
    "no fields": (
        1,
        {"fields          (U p);": "fields          ();"},
        r"fields must name what is sent, .*but is \(\)",
    ),
    "nothing sent": (
        1,
        {"writeInterval   20;": "writeInterval   2000;"},
        "the case ends, and nothing was sent: writeControl and writeInterval must come to a write before$",
    ),
    "two of them": (
        1,
        {"20;\n    }\n": "20;\n    }\n    other\n    {\n        type    streamFields;\n        fields  (p);\n    }\n"},
        "controlDict has 2 function objects of this type: .*name all fields in one of them$",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_case_ends_it_with_a_sentence(study: Path, mistake: str) -> None:
    num_ranks, changes, expected = MISTAKES[mistake]
    change(study / "controlDict", changes)
    done = run_alone(study, num_ranks)
    assert done.returncode != 0
    assert re.search(expected, done.stdout, re.MULTILINE | re.DOTALL), done.stdout[-3000:]


def test_a_case_runs_alone(study: Path) -> None:
    done = run_alone(study)
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith("End")


def test_cells_whose_places_in_the_whole_case_are_unknown_are_sent_rank_by_rank(study: Path) -> None:
    change(study / "Allrun", {"decomposePar\n": "decomposePar\nrm processor*/constant/polyMesh/cellProcAddressing\n"})
    done = run_alone(study, 2)
    assert done.returncode == 0, done.stdout
    assert "stream: no cellProcAddressing fits the mesh, so the cells are sent rank by rank" in done.stdout


def test_a_case_out_of_reach_of_its_study_says_so(study: Path) -> None:
    done = run_alone(study, connection="/nowhere")
    assert done.returncode != 0
    assert "streamFields stream: cannot read the connection file /nowhere" in done.stdout


@pytest.mark.parametrize(
    ("field", "shape", "told"),
    [
        pytest.param(
            "p", [10, 10], r"field 'p' must have the shape \(10, 10\), but has \(400,\)", marks=pytest.mark.full
        ),
        # As many numbers, but the components of a cell are not beside each other.
        ("U", [3, 20, 20], r"field 'U' must have the shape \(3, 20, 20\), but has \(400, 3\)"),
    ],
)
def test_fields_of_another_shape_than_the_study_has_are_refused_with_both_shapes(
    study: Path, field: str, shape: list[int], told: str
) -> None:
    settings = {f"study.fields.{field}": shape, "study.simulations": 1, "simulation.retries": 0}
    done = run(study, settings)
    assert done.exit_code == 4, done.output
    assert re.search(f"streamFields stream: {told}", done.output), done.output


def run_alone(study: Path, num_ranks: int = 1, *, connection: str = "none") -> "subprocess.CompletedProcess[str]":
    """Run the case without a server, in the folder of its study."""
    change(study / "U", {"{lid}": "1"})
    change(study / "transportProperties", {"{viscosity}": "0.01"})
    change(study / "controlDict", {"{study_dir}": str(study)})
    return subprocess.run(
        ["sh", "Allrun", str(num_ranks)],
        cwd=study,
        env=alone([]).environment | AS_ROOT | {"STREAM_CONNECTION": connection},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
