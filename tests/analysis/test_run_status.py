"""The state of a run that has ended, read from its folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import RunStatus, newest_checkpoint, status_of
from stream_server.analysis.runs import is_run, runs_below, the_run
from stream_server.analysis.simulations import simulations_of
from stream_server.commands.cli import main
from stream_server.errors import NotRunning
from stream_server.launcher.journal import records
from stream_server.machine.run_folder import set_aside
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock, holder_of
from stream_server.messages.launcher_link import Failed, GaveUp
from stream_server.messages.operator import Change, StudyStatus, TrainingStatus
from stream_server.storage.checksums import checksummed_json

Facts = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that was killed before it had saved anything."""
    folder = tmp_path / "runs" / "heat"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text('{"checkpoint": {"dir": null}}')
    (folder / RUN_LOCK).touch()
    return RunFolder(folder)


def report(run: RunFolder, **facts: Any) -> None:
    (run.path / "report.json").write_text(
        json.dumps({"exit_code": 0, "exit_reason": "finished", "message": ""} | facts)
    )


def checkpoint(folder: Path, number: int, batches: int) -> Path:
    path = folder / f"{number:06d}"
    path.mkdir(parents=True)
    manifest = {"checkpoint": number, "batches": batches, "incarnation": 1}
    (path / "manifest.json").write_bytes(checksummed_json(manifest))
    return path


@pytest.mark.parametrize(
    ("facts", "state", "detail"),
    [
        ({}, "finished", ""),
        ({"exit_reason": "early_stop", "message": "no progress"}, "finished", "early_stop: no progress"),
        ({"exit_code": 75, "message": "stopped by SIGINT"}, "stopped", "stopped by SIGINT; run again"),
        ({"exit_code": 3, "message": "it raised\nmore"}, "failed", "exit code 3: it raised; run again"),
    ],
)
def test_the_report_says_how_a_run_ended(run: RunFolder, facts: Facts, state: str, detail: str) -> None:
    report(run, **facts)
    found = status_of(run)
    assert found.state == state
    assert found.detail.startswith(detail)


def test_without_a_report_a_run_has_failed_or_was_killed(run: RunFolder) -> None:
    assert status_of(run).state == "killed"
    assert status_of(run).detail.endswith("run again, it starts over, because there is no checkpoint")
    (run.path / "exit.json").write_text(json.dumps({"exit_code": 7, "message": "rank 1 was lost"}))
    checkpoint(run.path / "checkpoints", 4, 80)
    found = status_of(run)
    assert (found.state, found.detail) == (
        "failed",
        "exit code 7: rank 1 was lost; run again, it goes on from checkpoint 4",
    )


def test_a_run_that_was_set_aside_is_not_said_to_go_on(run: RunFolder) -> None:
    (run.path / "study.json").write_text(json.dumps({"study": {"output_dir": str(run.path)}}))
    checkpoint(run.path / "checkpoints", 4, 80)
    assert status_of(run).detail.endswith("run again, it goes on from checkpoint 4")
    set_aside(run.path)
    aside = status_of(RunFolder(run.path.with_name("heat.1")))
    assert aside.state == "killed"
    assert aside.detail.endswith("; it was set aside by --fresh: no start continues it")


def test_of_a_failed_run_status_tells_what_failed_and_not_that_it_balances(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"requested": 7, "finished": 0, "failed": 3, "stopped": 4}
    report(run, exit_code=4, exit_reason="failed", message="none came", balanced=True, simulations=counts)
    assert main(["status", str(run.path)]) == 0
    told = capsys.readouterr().out
    assert "7 requested, 3 failed, 4 stopped" in told
    assert "balanced" not in told


def test_a_finished_run_without_a_reason_has_no_empty_line_in_its_status(run: RunFolder) -> None:
    report(run)
    assert [title for title, _ in status_of(run).rows()[:3]] == ["run", "state", "server"]


def test_of_a_run_that_goes_on_it_tells_what_its_server_says(run: RunFolder) -> None:
    training = TrainingStatus(
        at_s=0.0,
        batches=1200,
        samples=9000,
        batches_per_s=8.25,
        draws_per_s=64.0,
        loss=0.5,
        validation_loss=None,
        population=9,
        capacity=1000,
        fraction=0.25,
        elapsed_s=30.0,
        left_s=90.0,
        is_degraded=False,
        changes=tuple(
            Change(name="training.batch_size", before=size, now=size + 1, source="study.json", batch=100 * size)
            for size in range(1, 8)
        ),
    )
    server = StudyStatus(
        stage="training",
        incarnation=3,
        ranks=2,
        simulations={"running": 4},
        received=5000,
        awaited="data of simulation 7",
        queue={"Resources": 3},
        training=training,
    )
    status = RunStatus(run=run, state="running", detail="", server=server)
    assert dict(status.rows()[2:-1]) == {
        "server": "training, 2 ranks, 2 restarts",
        "simulations": "4 running",
        "time steps": "5,000 received",
        "queued": "3 (Resources)",
        "training": "1,200 batches, 8.2 batches/s, 64.0 draws/s, loss 0.5",
        "buffer": "9 of 1,000 on rank 0",
        "changed": "2 earlier changes, and",
        "": "from batch 700: training.batch_size 7 → 8, from study.json",
        "done": "25%, about 0:01:30 left",
        "waits for": "data of simulation 7",
    }


def test_of_a_run_that_has_ended_it_tells_what_restarts_have_changed(run: RunFolder) -> None:
    change = {"name": "training.clip_norm", "before": None, "now": 1.0, "source": "study.json", "batch": 7}
    report(run, changes=[change])
    assert dict(status_of(run).rows())["changed"] == "from batch 7: training.clip_norm null → 1.0, from study.json"
    report(run, changes=[{**change, "batch": "seven"}])
    assert "changed" not in dict(status_of(run).rows())


def test_one_of_a_kind_is_in_the_singular(run: RunFolder) -> None:
    report(run, batches=1, ranks=1, restarts=1)
    checkpoint(run.path / "checkpoints", 1, 1)
    rows = dict(status_of(run).rows())
    assert rows["server"] == "1 rank, 1 restart"
    assert rows["training"].startswith("1 batch in ")
    assert rows["checkpoint"].startswith("1, after 1 batch, ")


def test_list_says_that_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"there is no run in {tmp_path} or the folders below it\n"


def test_the_newest_checkpoint_is_the_last_whose_manifest_is_whole(run: RunFolder, tmp_path: Path) -> None:
    assert newest_checkpoint(run) is None
    checkpoint(run.path / "checkpoints", 4, 80)
    damaged = checkpoint(run.path / "checkpoints", 5, 100)
    (run.path / "checkpoints" / "000006.incarnation-1.tmp").mkdir()
    (damaged / "manifest.json").write_bytes(b"{}")
    found = newest_checkpoint(run)
    assert found is not None
    assert (found.number, found.batches) == (4, 80)
    (run.path / "study.json").write_text(json.dumps({"checkpoint": {"dir": str(tmp_path / "elsewhere")}}))
    checkpoint(tmp_path / "elsewhere", 9, 900)
    found = newest_checkpoint(run)
    assert found is not None
    assert found.number == 9


def test_whoever_holds_the_lock_runs_the_study(run: RunFolder) -> None:
    report(run)
    with StudyLock(run.path / RUN_LOCK, "stream-server"):
        assert status_of(run).state == "running"
    with StudyLock(run.path / RUN_LOCK, "stream-launcher"):
        assert status_of(run).state == "starting"
        with StudyLock(run.path / SERVER_LOCK, "stream-server"):
            assert status_of(run).state == "running"
        assert status_of(run).state == "restarting"
    assert status_of(run).state == "finished"
    assert holder_of(run.path / "nothing.lock") is None


def test_a_server_that_has_outlived_its_launcher_is_orphaned(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with StudyLock(run.path / SERVER_LOCK, "stream-server"):
        found = status_of(run)
        assert (found.state, found.is_live) == ("orphaned", True)
        assert main(["list", str(run.path)]) == 0
    assert "stream-launcher is gone: run the same command again, it takes this server over" in capsys.readouterr().out
    assert status_of(run).state == "killed"


def test_the_journal_and_the_folders_tell_of_simulations_that_no_checkpoint_has(run: RunFolder) -> None:
    (run.path / "parameters.csv").write_text("simulation,x\n0,0.5\n1,1.5\n2,2.5\n3,3.5\n4,4.5\n5,5.5\n")
    (run.path / "simulations" / "0" / "attempt-1").mkdir(parents=True)
    (run.path / "simulations" / "0" / "attempt-1" / "output.log").touch()
    journal = [
        records.LauncherStarted(pid=1, boot="b", link="ipc:///l", supervises=False, resumed=False),
        Failed(simulation=1, attempt=2, reason="crashed"),
        GaveUp(simulation=1, attempts=3, reason="crashed", redraw=False),
        Failed(simulation=2, attempt=0, reason="late"),
        Failed(simulation=0, attempt=0, reason="slow"),
        records.AttemptStarting(simulation=0, attempt=1, folder="0/attempt-1", public_key=None),
        records.AttemptStarting(simulation=4, attempt=0, folder="4/attempt-0", public_key=None),
        records.AttemptEnded(simulation=4, attempt=0, reason="ended with exit code 0"),
        records.AttemptStarting(simulation=5, attempt=0, folder="5/attempt-0", public_key=None),
        records.AttemptCancelled(simulation=5, attempt=0, reason="the study stops", excuse=""),
        records.AttemptEnded(simulation=5, attempt=0, reason="was killed by SIGTERM"),
    ]
    (run.path / "journal.jsonl").write_bytes(b"".join(map(records.encode, journal)))
    table = simulations_of(run)
    assert [it.state for it in table] == ["interrupted", "given_up", "failed", "waiting", "ended", "interrupted"]
    assert [it.attempts for it in table] == [2, 3, 1, 0, 1, 1]
    not_saved = "ended with exit code 0, but its end is in no checkpoint: when the study goes on, it is run again"
    assert [it.reason for it in table] == ["", "crashed", "late", "", not_saved, "the study stops"]
    assert table[0].parameters == {"x": 0.5}
    assert table[0].seconds == 0
    assert table[3].seconds is None


def test_runs_are_found_at_any_depth_and_nothing_within_them(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "model").mkdir()
    (run.path / "model" / "study.json").write_text("{}")
    (tmp_path / "study.json").write_text("{}")
    assert not is_run(tmp_path)
    assert [it.path for it in runs_below(tmp_path, print)] == [run.path]
    assert the_run(run.path) == run
    with pytest.raises(NotRunning, match="there is no"):
        the_run(tmp_path / "nowhere")


def test_commands_print_json_and_tables(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "parameters.csv").write_text("simulation,x\n0,0.5\n")
    assert main(["list", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["run"], listed["state"], listed["checkpoint"]) == (str(run.path), "killed", None)
    assert main(["status", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "killed"
    assert main(["simulations", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "waiting"
    for command in (["list", str(tmp_path)], ["status", str(run.path)], ["simulations", str(run.path)]):
        assert main(command) == 0
    assert "killed" in capsys.readouterr().out


def test_the_last_lines_of_launcher_and_ranks_are_merged_by_time_without_what_is_for_developers(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    day = "2026-11-26"
    logs = {
        "launcher": f"{day} 10:00:01,500 INFO simulation 4: begins\n{day} 10:00:04,000 WARNING it failed\n",
        "server-0": (
            f"{day} 10:00:01,400 INFO    MainThread stream_server.server.study.set_up: cores: 2\n"
            f"{day} 10:00:03,000 WARNING Thread-1 (run) my_model: no progress\nand why\n"
        ),
        "server-1": f"a line of a library\n{day} 10:00:02,000 INFO    signals stream_server.study: here\n",
    }
    (run.path / "logs").mkdir()
    for name, text in logs.items():
        (run.path / "logs" / f"{name}.log").write_text(text)
    expected = [
        f"{'':<19} server-1 | a line of a library",
        f"{day} 10:00:01 server-0 | cores: 2",
        f"{day} 10:00:01 launcher | simulation 4: begins",
        f"{day} 10:00:02 server-1 | here",
        f"{day} 10:00:03 server-0 | WARNING: my_model: no progress",
        f"{day} 10:00:03 server-0 | and why",
        f"{day} 10:00:04 launcher | WARNING: it failed",
    ]
    for arguments, num in (([], 7), (["-n", "0", "-f"], 7), (["-n", "3"], 3), (["-n", "1", "-f"], 1)):
        assert main(["logs", str(run.path), *arguments]) == 0
        assert capsys.readouterr().out.splitlines() == expected[-num:]


def test_the_log_of_a_simulation_is_that_of_its_newest_attempt(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt in (0, 9, 10):
        folder = run.path / "simulations" / "3" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(f"attempt {attempt}\nno end")
    assert main(["logs", str(run.path), "3"]) == 0
    assert capsys.readouterr().out == "attempt 10\nno end\n"
    assert main(["logs", str(run.path), "3", "-n", "1"]) == 0
    assert capsys.readouterr().out == "no end\n"
    (folder / "output.log").write_text("")
    assert main(["logs", str(run.path), "3"]) == 0
    assert capsys.readouterr() == ("", f"{folder / 'output.log'} is empty\n")


@pytest.mark.parametrize("text", ["x" * 2_000_000, "".join(f"\rstep {it}" for it in range(300_000))])
def test_a_few_lines_of_a_log_are_no_megabytes(text: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.path / "simulations" / "3" / "attempt-0"
    folder.mkdir(parents=True)
    (folder / "output.log").write_text(f"begins\n{text}\nends\n")
    assert main(["logs", str(run.path), "3", "-n", "5"]) == 0
    first, middle, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("begins", "ends")
    assert middle == "step 299999" or (len(middle) < 3000 and "1,998,000 characters, shown by -n 0" in middle)
    assert main(["logs", str(run.path), "3", "-n", "0"]) == 0
    assert len(capsys.readouterr().out) in (len("begins\nstep 299999\nends\n"), 2_000_013)


@pytest.mark.parametrize("command", ["status", "stop", "logs", "simulations", "list"])
def test_no_such_run_ends_with_1(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("stream-study: there is no ")
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0


def test_what_does_not_run_cannot_be_stopped_and_has_no_logs(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", str(run.path)]) == 1
    assert "is not running: its state is killed" in capsys.readouterr().err
    assert main(["logs", str(run.path), "7"]) == 1
    assert "there is no output of simulation 7" in capsys.readouterr().err
