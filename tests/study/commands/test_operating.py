"""`stream-study` asks and stops studies that run; each study is asked all there is to ask."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream_server.commands.cli import main
from tests.study.commands.test_prometheus import listens, scrape
from tests.study.ends.test_signals import ENDLESS, wait_for
from tests.study.restarts.test_supervision import PACED, SUPERVISED, num_starts
from tests.support.killing import checkpoints
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_study

Start = Callable[..., AbstractContextManager[LiveRun]]
Said = Callable[..., Any]
LIMIT_S = 60.0


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """`said("status", folder)` gives what the command prints as JSON."""

    def said(*arguments: object) -> Any:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return said


def follow(run: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`stream-study logs -f` beside the test."""
    command = [sys.executable, "-m", "stream_server.commands.cli", "logs", str(run), *arguments, "-f"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def assert_finished_early(done: Run, num_started: int) -> None:
    report, account = done.report, done.account
    assert done.exit_code == 0, done.output
    assert (report["exit_reason"], report["balanced"]) == ("finished", True)
    assert "stop --finish" in report["message"]
    assert report["simulations"]["finished"] == num_started
    assert account["trained"] == account["accepted"] == 20 * (num_started - 1)
    missing = account["never_produced"]
    assert len(missing) == report["simulations"]["stopped"] == report["simulations"]["requested"] - num_started
    assert all("stop --finish" in reason and num == 20 for reason, num in missing.items())


def test_a_study_on_two_ranks_is_asked_followed_scraped_and_finished_early(
    start: Start, said: Said, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    settings = {
        "simulation.command": ["python", "patient.py", str(go)],
        "study.simulations": 3,
        "metrics.prometheus_port": 0,
    }
    with start(num_ranks=2, settings=settings) as live:
        wait_for(live, "waiting")
        run = live.output_dir
        logs = follow(run, "1")
        (listed,) = said("list", tmp_path)
        assert (listed["run"], listed["state"]) == (str(run), "running")
        status = said("status", run)
        assert (status["server"]["ranks"], status["server"]["stage"]) == (2, "training")
        assert status["server"]["simulations"]["running"] == 2
        assert status["server"]["training"]["capacity"] == 40
        table = said("simulations", run)
        assert [row["state"] for row in table] == ["running"] * 2 + ["waiting"] * 2
        assert table[0]["attempts"] == 1
        assert table[0]["seconds"] > 0
        assert table[3]["seconds"] is None
        assert (run / "operator.json").stat().st_mode & 0o777 == 0o600
        [target] = json.loads((run / "prometheus.json").read_text())[0]["targets"]
        live.wait_until(lambda: scrape(f"http://{target}/metrics").get(("batches_trained_total", None), 0) > 0)
        values = scrape(f"http://{target}/metrics")
        assert values["samples_received_total", None] >= values["samples_trained_total", None] > 0
        assert values["buffer_capacity_samples", None] == 40
        assert main(["stop", str(run), "--finish"]) == 0
        live.wait_until(lambda: said("status", run)["server"]["simulations"]["stopped"] == 2)
        assert said("status", run)["server"]["stage"] == "finishing"
        go.touch()
        done = live.end()
        assert logs.communicate(timeout=LIMIT_S)[0].startswith("waiting\n")
        assert logs.returncode == 0
    assert not listens(target)
    assert not (run / "prometheus.json").exists()
    assert_finished_early(done, num_started=2)
    status = said("status", run)
    assert (status["state"], status["report"]["exit_code"]) == ("finished", 0)
    assert [row["state"] for row in said("simulations", run)] == ["finished"] * 2 + ["stopped"] * 2
    assert main(["stop", str(run)]) == 1
    # Asked for more, it goes on with those that were left out, too.
    more = settings | {"study.simulations": 4}
    assert_complete(run_study(NUMPY_STUDY, run, mpi=None, settings=more), num_simulations=4)


def test_a_study_under_a_launcher_that_is_told_to_stop_saves_and_is_not_started_again(
    start: Start, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(**SUPERVISED, settings=PACED | ENDLESS | {"server.ranks": 1}) as live:
        wait_for(live, "running")
        waiting = threading.Thread(target=main, args=(["stop", str(live.output_dir), "--wait"],))
        waiting.start()
        done = live.end()
        waiting.join(LIMIT_S)
    assert "is not restarted" not in done.output
    assert (done.exit_code, done.report["exit_reason"], num_starts(done)) == (75, "saved", 1)
    assert "stream-study stop" in done.report["message"]
    assert f"{done.output_dir}: stopped" in capsys.readouterr().out
    status = said("status", done.output_dir)
    newest = int(checkpoints(done.output_dir)[-1])
    assert (status["state"], status["checkpoint"]["number"]) == ("stopped", newest)


@pytest.mark.full
def test_a_study_whose_launcher_was_killed_is_stopped_and_goes_on(start: Start, said: Said, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = PACED | {"simulation.command": ["python", "patient.py", str(go)], "server.ranks": 1}
    with start(**SUPERVISED, settings=settings) as first:
        wait_for(first, "waiting")
        ranks = first.ranks
        first.process.kill()
        first.process.wait()
        assert main(["stop", str(first.output_dir), "--wait"]) == 0
        (listed,) = said("list", first.output_dir)
        assert listed["state"] == "stopped"
        # One that still lives would be taken over, and end its launcher, too.
        psutil.wait_procs(ranks, LIMIT_S)
        go.touch()
        with start(**SUPERVISED, settings=settings, mark=first.mark) as live:
            done = live.end()
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 1


@pytest.mark.full
def test_a_study_that_finishes_goes_on_doing_so_after_a_restart(start: Start, said: Said, tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = PACED | {
        "simulation.command": ["python", "patient.py", str(go)],
        "study.simulations": 3,
        "server.ranks": 1,
    }
    with start(**SUPERVISED, settings=settings) as live:
        run = live.output_dir
        live.wait_until(lambda: all("waiting" in live.log(i) for i in (0, 1)))
        assert main(["stop", str(run), "--finish"]) == 0
        live.wait_until(lambda: said("status", run)["server"]["simulations"]["stopped"] == 2)
        live.ranks[0].kill()
        # Asked while there is no server, or the next one comes: it is waited for.
        status = said("status", run, "--timeout", LIMIT_S)
        live.wait_until(lambda: said("status", run, "--timeout", LIMIT_S)["server"]["incarnation"] == 2)
        assert status["state"] == "running"
        live.wait_until(lambda: said("status", run)["server"]["simulations"]["stopped"] == 2)
        go.touch()
        assert_finished_early(live.end(), num_started=2)


def test_of_a_study_that_was_killed_the_checkpoint_and_the_folders_tell(killed: Run, said: Said) -> None:
    status = said("status", killed.output_dir)
    assert status["state"] in ("killed", "failed")
    assert "goes on from checkpoint 3" in status["detail"]
    table = said("simulations", killed.output_dir)
    assert {row["state"] for row in table} <= {"finished", "ended", "interrupted", "waiting"}
    assert table[0]["attempts"] == 1
    assert main(["stop", str(killed.output_dir)]) == 1
