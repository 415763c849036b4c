"""The commands themselves: what they say, what they refuse, and the exit code they leave with."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_server.server.run.plan import limit_of_node
from tests.support.launch import IMPLEMENTATIONS, mpirun
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, command, run_study

CONFIGS = Path(__file__).parent.parent.parent / "configs"
STUDIES = (
    NUMPY_STUDY,
    pytest.param(CONFIGS / "heat" / "study.json", marks=pytest.mark.full),
    pytest.param(CONFIGS / "lorenz" / "study.json", marks=pytest.mark.full),
)


def said(program: str, *arguments: str) -> str:
    """The output of a command that does not run a study."""
    launch = command(program, 1, None, list(arguments))
    done = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=50, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_finished_study_says_so_and_fresh_starts_it_over_and_keeps_the_old_folder(run: Callable[..., Run]) -> None:
    settings = {"study.simulations": 1}
    first = run(mpi=None, settings=settings)
    assert_complete(first, num_simulations=1)
    report = first.output_dir / "report.json"
    written = report.read_bytes()

    again = run(num_ranks=2, settings=settings)
    assert again.exit_code == 0
    assert again.output.count("ripple is finished") == 1
    assert report.read_bytes() == written

    fresh = run(mpi=None, settings=settings, arguments=["--fresh"])
    assert_complete(fresh, num_simulations=1)
    assert fresh.report["restarts"] == 0
    assert (fresh.output_dir.with_name("run.1") / "report.json").read_bytes() == written


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_stream_launcher_starts_the_ranks_of_the_study(run: Callable[..., Run], num_ranks: int) -> None:
    done = run(program="stream-launcher", mpi=None, settings={"study.simulations": 1, "server.ranks": num_ranks})
    assert_complete(done, num_simulations=1)
    assert done.report["ranks"] == num_ranks


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.parent.name)
def test_a_server_class_can_be_tried_without_a_simulation(study: Path, tmp_path: Path) -> None:
    done = run_study(study, tmp_path / "run", mpi=None, arguments=["--fast-dev-run"])
    assert done.exit_code == 0, done.output
    assert "It works" in done.output
    assert not done.output_dir.exists()


def test_check_tells_what_a_study_takes_and_starts_nothing(run: Callable[..., Run]) -> None:
    done = run(mpi=None, arguments=["--check"])
    assert done.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in done.output.splitlines() if not line.startswith(("server c", "ba")))
    assert lines["simulations"] == "6 for training, 1 for validation"
    assert lines["samples"].startswith("140 samples of 72 B")
    assert lines["command"] == f"python {NUMPY_STUDY.parent / 'ripple.py'}"
    assert lines["connections"].endswith("fits")
    assert "at most 2 that the launcher starts (launcher.max_running), and 4 that attach" in done.output
    assert not done.output_dir.exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-solver"], "'no-such-solver' is neither on the PATH of the simulations nor in the folder of"),
        (["./no-such-solver"], "there is no program "),
        (["ripple.py"], "cannot be executed"),
        (["python", "riple.py"], f"there is no file {NUMPY_STUDY.parent / 'riple.py'} for python to run"),
    ],
)
def test_check_tells_of_a_program_that_does_not_exist(run: Callable[..., Run], command: list[str], told: str) -> None:
    done = run(mpi=None, arguments=["--check"], settings={"simulation.command": command})
    assert done.exit_code == 2
    assert "stream-server: simulation.command: " in done.output
    assert told in done.output


@pytest.mark.parametrize(
    ("server", "precision", "told"),
    [
        ("server.py:LinearServer", "16-mixed", "training.precision 16-mixed needs a TorchServer"),
        ("torch_server.py:TinyServer", "16-mixed", 'training.precision "16-mixed" needs a GPU'),
        pytest.param("torch_server.py:TinyServer", "16-true", 'write "bf16-true" or "32-true"', marks=pytest.mark.full),
    ],
)
def test_check_refuses_a_precision_that_the_run_would_refuse(
    run: Callable[..., Run], server: str, precision: str, told: str
) -> None:
    settings = {"server.class": server, "training.precision": precision}
    done = run(mpi=None, arguments=["--check"], settings=settings, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.exit_code == 2
    assert told in done.output
    assert not done.output_dir.exists()


@pytest.mark.parametrize("arguments", [["--check"], []], ids=["check", "run"])
def test_more_samples_than_a_node_has_memory_for_are_refused(run: Callable[..., Run], arguments: list[str]) -> None:
    done = run(mpi=None, arguments=arguments, settings={"buffer.capacity": 10**13})
    assert done.exit_code == 2, done.output
    assert "buffer.capacity: the samples of a rank take 720.3 TiB" in done.output
    assert "but this node has" in done.output
    assert not done.output_dir.exists()


def test_the_ranks_of_a_node_share_its_memory(run: Callable[..., Run]) -> None:
    limit = limit_of_node()
    assert limit is not None
    # One rank could have it.
    capacity = int(limit.num_bytes * 0.7) // 72
    done = run(num_ranks=2, settings={"buffer.capacity": capacity})
    assert done.exit_code == 2, done.output
    assert "for the 2 ranks of a node, but this node has" in done.output
    assert not done.output_dir.exists()


def test_check_never_begins_mpi(tmp_path: Path) -> None:
    """Some mpirun kill a job of which a rank leaves without MPI_Finalize; --check must be safe on a login node too."""
    script = f"""
import sys
from stream_server.server.commands.cli import main
sys.exit(main(["--config", {str(NUMPY_STUDY)!r}, "--check"]) or 10 * ("mpi4py" in sys.modules))
"""
    launch = mpirun("mpich", 1, ["-c", script])
    subprocess.run(launch.argv, env=launch.environment, capture_output=True, timeout=50, check=True)


def test_help_teaches_and_the_schema_is_printed() -> None:
    text = said("stream-server", "--help")
    assert "mpirun -n 4 stream-server --config study.json" in text
    assert "exit status:" in text
    assert "server.ranks" in said("stream-launcher", "--help")
    assert said("stream-server", "--version").startswith("stream-server 0")
    assert json.loads(said("stream-server", "--schema"))["properties"].keys() >= {"study", "buffer", "training"}


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
def test_a_mistake_in_study_json_is_told_once_by_all_ranks(run: Callable[..., Run], mpi: str) -> None:
    done = run(num_ranks=2, mpi=mpi, settings={"buffer.policy": "lifo"})
    assert done.exit_code == 2
    assert done.output.count("buffer.policy") == 1
