"""The commands themselves: what they say, what they refuse, and the exit code they leave with."""

import contextlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stream_server.config import load
from stream_server.errors import ConfigError
from stream_server.launcher.supervision.cli import main as stream_launcher_main
from stream_server.server.commands import check
from stream_server.server.commands.cli import main as stream_server_main
from stream_server.server.run.output import OutputFolder
from stream_server.server.run.plan import limit_of_node
from stream_server.studies.study import Study
from tests.study.conftest import Here
from tests.support.launch import mpirun
from tests.support.runs import NUMPY_STUDY, Run, assert_complete

CONFIGS = Path(__file__).parents[3] / "configs"
STUDIES = (
    NUMPY_STUDY,
    pytest.param(CONFIGS / "heat" / "study.json", marks=pytest.mark.full),
    pytest.param(CONFIGS / "lorenz" / "study.json", marks=pytest.mark.full),
)


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


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.parent.name)
def test_a_server_class_can_be_tried_without_a_simulation(
    study: Path, stream_server_here: Here, tmp_path: Path
) -> None:
    output_dir = tmp_path / "run"
    exit_code, output = stream_server_here(study, "--fast-dev-run", settings={"study.output_dir": str(output_dir)})
    assert exit_code == 0, output
    assert "It works" in output
    assert not output_dir.exists()


def test_check_tells_what_a_study_takes_and_starts_nothing(stream_server_here: Here, tmp_path: Path) -> None:
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check", settings={"study.output_dir": str(tmp_path / "run")})
    assert exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in output.splitlines() if not line.startswith(("server c", "ba")))
    assert lines["simulations"] == "6 for training, 1 for validation"
    assert lines["samples"].startswith("140 samples of 72 B")
    assert lines["command"] == f"python {NUMPY_STUDY.parent / 'ripple.py'}"
    assert lines["connections"].endswith("fits")
    assert "at most 2 that the launcher starts (launcher.max_running), and 4 that attach" in output
    assert list(tmp_path.iterdir()) == []


def test_check_under_mpirun_plans_for_its_ranks_and_one_of_them_tells_it(
    stream_server_here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert stream_server_here(NUMPY_STUDY, "--check") == (0, "")
    monkeypatch.setenv("PMI_RANK", "0")
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check")
    assert exit_code == 0
    assert re.search("^ranks +2, as mpirun starts them$", output, re.MULTILINE)
    assert "2 ranks × " in output


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"buffer.policy": "reservoir", "buffer.watermark": 41, "buffer.capacity": 80, "study.simulations": 4},
            "buffer.watermark: 41 samples can never wait: the study sends 40 to a rank in all",
        ),
        (
            {
                "buffer.policy": "reservoir",
                "buffer.routing": "simulations",
                "study.simulations": 1,
                "study.time_steps": None,
            },
            'study.simulations: 1, fewer than the 2 ranks, but with the routing "simulations" each needs one',
        ),
        (
            {
                "buffer.policy": "reservoir",
                "buffer.routing": "simulations",
                "launcher.max_running": 1,
                "client.max_attached": 0,
            },
            'buffer.routing: "simulations" needs 2 simulations at once',
        ),
    ],
)
@pytest.mark.parametrize("way", ["server.ranks", "mpirun", "Study.check"])
def test_check_refuses_what_the_ranks_would_refuse_that_will_run(
    stream_server_here: Here, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], told: str, way: str
) -> None:
    if way == "Study.check":
        Study.load(NUMPY_STUDY, settings).check()
        with pytest.raises(ConfigError, match=re.escape(told)):
            Study.load(NUMPY_STUDY, settings).check(ranks=2)
        return
    assert stream_server_here(NUMPY_STUDY, "--check", settings=settings)[0] == 0
    if way == "mpirun":
        monkeypatch.setenv("PMI_SIZE", "2")
        monkeypatch.setenv("PMI_RANK", "0")
    else:
        settings = settings | {"server.ranks": 2}
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check", settings=settings)
    assert exit_code == 2
    assert "the study on 2 ranks has 1 problem:" in output
    assert told in output


def test_check_refuses_a_change_that_the_run_in_the_folder_would_refuse(
    stream_server_here: Here, tmp_path: Path
) -> None:
    settings = {"study.output_dir": str(tmp_path)}
    config = load(NUMPY_STUDY, [f"study.output_dir={tmp_path}"])
    OutputFolder(tmp_path).prepare(config, resume=False)
    (tmp_path / "record").mkdir()
    assert stream_server_here(NUMPY_STUDY, "--check", settings=settings)[0] == 0
    assert stream_server_here(NUMPY_STUDY, "--check", settings=settings | {"training.batch_size": 5})[0] == 0
    settings |= {"study.seed": 5}
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check", settings=settings)
    assert exit_code == 2
    assert "study.seed: 5, but the run began with 0" in output
    assert stream_server_here(NUMPY_STUDY, "--check", "--fresh", settings=settings)[0] == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"load.checkpoint": "nowhere"}, "load.checkpoint must be the output folder of a study"),
        ({"study.share_with": "no-such-group"}, 'study.share_with: there is no group "no-such-group" here'),
        ({"client.max_attached": 10**9, "buffer.capacity": 2 * 10**9}, "open files are needed"),
    ],
)
def test_check_refuses_what_a_start_here_would_refuse(
    stream_server_here: Here, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr(check, "memory_problem", lambda *_: "")
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check", settings=settings)
    assert exit_code == 2
    assert told in output


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-solver"], "'no-such-solver' is neither on the PATH of the simulations nor in the folder of"),
        (["./no-such-solver"], "there is no program "),
        (["ripple.py"], "cannot be executed"),
        (["python", "riple.py"], f"there is no file {NUMPY_STUDY.parent / 'riple.py'} for python to run"),
    ],
)
def test_check_tells_of_a_program_that_does_not_exist(stream_server_here: Here, command: list[str], told: str) -> None:
    exit_code, output = stream_server_here(NUMPY_STUDY, "--check", settings={"simulation.command": command})
    assert exit_code == 2
    assert "stream-server: simulation.command: " in output
    assert told in output


@pytest.mark.parametrize(
    ("server", "precision", "told"),
    [
        ("server.py:LinearServer", "16-mixed", "training.precision 16-mixed needs a TorchServer"),
        ("torch_server.py:TinyServer", "16-mixed", 'training.precision "16-mixed" needs a GPU'),
        pytest.param("torch_server.py:TinyServer", "16-true", 'write "bf16-true" or "32-true"', marks=pytest.mark.full),
    ],
)
def test_check_refuses_a_precision_that_the_run_would_refuse(
    stream_server_here: Here, monkeypatch: pytest.MonkeyPatch, server: str, precision: str, told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exit_code, output = stream_server_here(
        NUMPY_STUDY, "--check", settings={"server.class": server, "training.precision": precision}
    )
    assert exit_code == 2
    assert told in output


def test_more_samples_than_a_node_has_memory_for_are_refused(run: Callable[..., Run], stream_server_here: Here) -> None:
    settings = {"buffer.capacity": 10**13}
    done = run(mpi=None, settings=settings)
    assert not done.output_dir.exists()
    for exit_code, output in (
        stream_server_here(NUMPY_STUDY, "--check", settings=settings),
        (done.exit_code, done.output),
    ):
        assert exit_code == 2, output
        assert "buffer.capacity: the samples of a rank take 720.3 TiB" in output
        assert "but this node has" in output


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
    subprocess.run(launch.argv, env=launch.environment, capture_output=True, timeout=120, check=True)


def test_help_teaches_and_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(main: Callable[[list[str]], int], argument: str) -> str:
        with contextlib.suppress(SystemExit):
            assert main([argument]) == 0
        output, errors = capsys.readouterr()
        assert errors == ""
        return output

    text = printed(stream_server_main, "--help")
    assert "mpirun -n 4 stream-server --config study.json" in text
    assert "exit status:" in text
    assert "server.ranks" in printed(stream_launcher_main, "--help")
    assert printed(stream_server_main, "--version").startswith("stream-server 0")
    assert json.loads(printed(stream_server_main, "--schema"))["properties"].keys() >= {"study", "buffer", "training"}


@pytest.mark.parametrize("mpi", [pytest.param("mpich", marks=pytest.mark.full), "openmpi"])
def test_a_mistake_in_study_json_is_told_once_by_all_ranks(run: Callable[..., Run], mpi: str) -> None:
    done = run(num_ranks=2, mpi=mpi, settings={"buffer.policy": "lifo"})
    assert done.exit_code == 2
    assert done.output.count("buffer.policy") == 1
