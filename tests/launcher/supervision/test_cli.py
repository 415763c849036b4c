"""The whole command: what it does with a server that ends, in whatever way."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream_server.config import load
from stream_server.launcher.supervision.cli import main
from stream_server.messages import launcher_link
from tests.launcher.study_run import DEADLINE_S, StudyRun
from tests.support.runs import NUMPY_STUDY

pytestmark = pytest.mark.slow

WELL = [
    ["live"],
    ["plan", 1],
    ["wait_for_attempts", 1],
    ["wait_for_output"],
    ["finish", 0],
    ["stop_all"],
    ["report", 0],
]
LOST = [["live"], ["plan", 1], ["wait_for_attempts", 1], ["wait_for_output"], ["die"]]


def test_a_study_that_ends_well_ends_its_simulations_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with StudyRun(tmp_path, WELL, ranks=2) as run:
        assert run.end() == 0, run.errors
        assert run.num_starts == 1, run.errors
        assert run.facts(0)["folder"] == run.facts(0)["mark"] == run.facts(0, 1)["mark"]
        assert run.journal[-1].items() >= {"message": "LauncherLeft", "exit_code": 0}.items()


def test_a_simulation_that_no_launcher_knows_does_not_outlive_the_study(tmp_path: Path) -> None:
    acts = [*WELL[:-3], ["wait_for_file", "go"], *WELL[-3:]]
    with StudyRun(tmp_path, acts) as run:
        run.wait_for_output(0)
        unknown = run.output_dir / "simulations" / "7" / "attempt-0" / "connection.json"
        lost = subprocess.Popen(["sleep", "1000"], env={"STREAM_CONNECTION": str(unknown)}, start_new_session=True)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.errors
        assert lost.wait(60) == -signal.SIGTERM


def test_the_server_gets_what_the_user_gave_and_where_to_find_us(tmp_path: Path) -> None:
    arguments = ("--set", "training.batch_size=4", "--resume", "--time-limit", "01:00:00")
    run = StudyRun(tmp_path, WELL, arguments=arguments)
    run.make_run()
    with run:
        assert run.end() == 0, run.errors
        given = run.facts(0)["arguments"]
        kept = run.output_dir / "launched.json"
        assert given[:4] == ["--config", str(kept), "--set=training.batch_size=4", "--resume"]
        assert load(kept).resolved() == load(tmp_path / "study.json", ["training.batch_size=4"]).resolved()
        assert given[4] == "--time-limit"
        assert given[5].startswith("00:59:")
        assert [given[6], given[8]] == ["--link", "--alive"]


def test_a_server_that_is_lost_is_started_again_while_its_simulations_go_on(tmp_path: Path) -> None:
    with StudyRun(tmp_path, LOST, WELL) as run:
        assert run.end() == 0, run.errors
        assert run.num_starts == 2, run.errors
        assert run.attempts(0) == run.attempts(1) == [(0, 0)]
        assert "was killed by SIGKILL" in run.errors
        assert "restart 1 of 3" in run.errors
        assert run.facts(0)["mark"] != run.facts(1)["mark"]


def test_a_server_that_is_started_again_has_the_study_of_the_launcher_and_not_what_it_has_become(
    tmp_path: Path,
) -> None:
    with StudyRun(tmp_path, [*LOST[:-1], ["wait_for_file", "go"], LOST[-1]], WELL) as run:
        before = load(tmp_path / "study.json").resolved()
        run.wait_for_output(0)
        (tmp_path / "study.json").write_text("edited, and not finished")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.errors
        assert run.num_starts == 2, run.errors
        assert load(run.facts(1)["arguments"][1]).resolved() == before


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(1, "the server could not be started"), (2, "mpirun -n 2 started no rank of the server; what it wrote above")],
)
def test_a_server_of_which_no_rank_comes_to_life_is_started_once(tmp_path: Path, ranks: int, words: str) -> None:
    with StudyRun(tmp_path, [["leave", 1]], ranks=ranks) as run:
        assert run.end() == 2
        # mpirun ends the ranks that are left, maybe before rank 0 has said that it is there.
        assert not list(run.folder.glob("start-1-*"))
        assert words in run.errors


def test_a_simulation_that_goes_on_is_told_the_new_incarnation(tmp_path: Path) -> None:
    acts = [["live"], ["plan", 1], ["wait_for_file", "go"]]
    with StudyRun(tmp_path, acts, acts) as run:
        pid = run.wait_for_output(0)
        file = run.folder_of(0) / "connection.json"
        assert json.loads(file.read_text())["incarnation"] == 1
        os.kill(run.facts(0)["pid"], signal.SIGKILL)
        run.wait_until(lambda: json.loads(file.read_text())["incarnation"] == 2)
        assert run.wait_for_output(0) == pid
        assert not (run.folder_of(0).with_name("attempt-1")).exists()


def test_a_simulation_that_fails_after_a_restart_of_the_server_has_not_failed_by_itself(tmp_path: Path) -> None:
    acts = [["live"], ["plan", 1], ["wait_for_file", "go"]]
    with StudyRun(tmp_path, acts, acts) as run:
        run.wait_for_output(0)
        os.kill(run.facts(0)["pid"], signal.SIGKILL)
        run.wait_until(lambda: run.attempts(1) == [(0, 0)])
        os.kill(int(run.wait_for_output(0)), signal.SIGKILL)
        run.wait_until(lambda: run.attempts(1) == [(0, 0), (0, 1)])
        (ended,) = [record for record in run.journal if record["message"] == "Failed"]
        assert ended["excuse"]


def test_a_server_that_always_dies_is_given_up_and_the_logs_are_named(tmp_path: Path) -> None:
    with StudyRun(tmp_path, LOST, restarts=1) as run:
        assert run.end() == 7, run.errors
        assert run.num_starts == 2, run.errors
        assert "launcher.restarts allows no more" in run.errors
        assert str(run.output_dir / "logs") in run.errors


def test_a_committed_checkpoint_gives_the_restarts_back(tmp_path: Path) -> None:
    first, second = ([*LOST[:-1], ["commit", checkpoint], ["die"]] for checkpoint in (1, 2))
    with StudyRun(tmp_path, LOST, first, second, LOST, WELL, restarts=1) as run:
        assert run.end() == 7, run.errors
        assert run.num_starts == 4, run.errors


@pytest.mark.parametrize("code", [5, *(pytest.param(code, marks=pytest.mark.full) for code in (0, 2, 4, 6, 75))])
def test_what_a_restart_would_not_mend_is_the_exit_code_of_the_command(tmp_path: Path, code: int) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["wait_for_output"], ["report", code, 9]], ranks=2) as run:
        assert run.end() == code, run.errors
        assert run.num_starts == 1, run.errors


@pytest.mark.parametrize(
    ("acts", "num_starts"),
    [
        ([[["raise_at", None]]], 1),
        pytest.param([[["raise_at", 5]], [["raise_at", 5]]], 2, marks=pytest.mark.full),
        ([[["raise_at", 5]], [["raise_at", 6]], [["raise_at", 6]]], 3),
    ],
)
def test_user_code_that_raises_before_training_or_twice_at_one_batch_ends_the_study(
    tmp_path: Path, acts: list[Any], num_starts: int
) -> None:
    with StudyRun(tmp_path, *acts) as run:
        assert run.end() == 3, run.errors
        assert run.num_starts == num_starts, run.errors


@pytest.mark.parametrize(("ending", "code"), [(["leave", 2], 2), (["leave", 6], 6)])
def test_a_server_that_refuses_to_start_is_not_started_again(tmp_path: Path, ending: list[Any], code: int) -> None:
    with StudyRun(tmp_path, [ending]) as run:
        assert run.end() == code, run.errors
        assert run.num_starts == 1, run.errors


def test_a_study_that_was_finished_before_stays_so(tmp_path: Path) -> None:
    run = StudyRun(tmp_path, [["leave", 0]])
    run.make_run()
    (run.output_dir / "report.json").write_text('{"exit_code": 0}')
    with run:
        assert run.end() == 0, run.errors
        assert run.num_starts == 1, run.errors


def test_exit_status_0_without_a_report_is_no_success(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["leave", 0]], restarts=0) as run:
        assert run.end() == 7, run.errors


def test_a_report_of_an_earlier_run_is_not_believed(tmp_path: Path) -> None:
    run = StudyRun(tmp_path, LOST, restarts=0)
    run.make_run()
    (run.output_dir / "report.json").write_text('{"exit_code": 0}')
    with run:
        assert run.end() == 7, run.errors


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR2,
        signal.SIGXCPU,
        *(pytest.param(it, marks=pytest.mark.full) for it in (signal.SIGINT, signal.SIGUSR1)),
    ],
)
def test_a_signal_makes_the_server_save_and_leave(tmp_path: Path, number: signal.Signals) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["wait_for_leave"]], ranks=2) as run:
        run.wait_for_output(0)
        run.launcher.send_signal(number)
        assert run.end() == 75, run.errors
        (leave,) = [message for message in run.heard(0) if isinstance(message, launcher_link.Leave)]
        assert number.name in leave.reason


@pytest.mark.parametrize("name", ["SIGUSR2", pytest.param("SIGXCPU", marks=pytest.mark.full)])
def test_a_signal_to_all_processes_of_a_job_costs_no_server(tmp_path: Path, name: str) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["wait_for_leave"]], ranks=2) as run:
        run.wait_for_output(0)
        for process in run.processes("STREAM_SERVER_JOB"):
            if any(word.endswith("mpirun") for word in psutil.Process(process.pid).cmdline()):
                os.kill(process.pid, signal.Signals[name])
        run.launcher.send_signal(signal.Signals[name])
        assert run.end() == 75, run.errors


def test_a_server_that_does_not_speak_yet_gets_the_signal_itself(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["say", "started"], ["stay"]], ranks=2) as run:
        run.wait_until(lambda: run.output.count("started") == 2)
        run.launcher.send_signal(signal.SIGINT)
        assert run.end() == 75, run.errors


def test_a_server_that_has_reported_and_does_not_leave_is_killed_at_the_first_signal(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["be_deaf"], ["write_report", 0], ["stay"]]) as run:
        run.wait_until(lambda: (run.output_dir / "report.json").exists())
        run.launcher.send_signal(signal.SIGTERM)
        assert run.end() == 0, run.errors
        assert "whose report is written" in run.errors


def test_a_second_interrupt_kills_server_and_simulations(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["be_deaf"], ["stay"]]) as run:
        run.wait_for_output(0)
        run.launcher.send_signal(signal.SIGINT)
        run.wait_until(lambda: any(isinstance(message, launcher_link.Leave) for message in run.heard(0)))
        run.launcher.send_signal(signal.SIGINT)
        assert run.end() == 7, run.errors


def test_no_server_is_started_again_once_the_study_was_asked_to_stop(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["be_deaf"], ["wait_for_file", "go"], ["die"]]) as run:
        run.wait_for_output(0)
        run.launcher.send_signal(signal.SIGTERM)
        run.wait_until(lambda: any(isinstance(message, launcher_link.Leave) for message in run.heard(0)))
        (tmp_path / "go").touch()
        assert run.end() == 7, run.errors
        assert run.num_starts == 1, run.errors


def test_a_server_that_dies_on_its_way_out_is_not_started_again_if_an_operator_stopped_it(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [*LOST[:-1], ["was_asked_to_stop", "an operator stopped it"], ["die"]], WELL) as run:
        assert run.end() == 7, run.errors
        assert run.num_starts == 1, run.errors
        assert "it is not restarted, for it was to stop" in run.errors


def test_a_rank_that_is_stopped_is_killed_and_the_server_started_again(tmp_path: Path) -> None:
    stopped = [["live"], ["plan", 1], ["wait_for_attempts", 1], ["die", 1, signal.SIGSTOP], ["stay"]]
    with StudyRun(tmp_path, stopped, WELL, ranks=2) as run:
        assert run.end() == 0, run.errors
        assert "does not answer any more" in run.errors or "was stopped by a signal" in run.errors


def test_ranks_that_outlive_mpirun_are_killed_before_the_server_is_started_again(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["stay"]], WELL, ranks=2) as run:
        ranks = {run.facts(0)["pid"], run.facts(0, 1)["pid"]}
        run.wait_for_output(0)
        (first,) = {it.session for it in run.processes("STREAM_SERVER_JOB")} - ranks
        os.kill(first, signal.SIGKILL)
        assert run.end() == 0, run.errors
        assert run.num_starts == 2, run.errors


def test_two_launchers_never_run_the_same_study(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["stay"]]) as run:
        run.wait_for_output(0)
        for num, arguments in enumerate(([], ["--fresh"]), start=1):
            assert run.start(*arguments).wait(DEADLINE_S) == 2
            assert run.errors.count(f"is in use: stream-launcher, process {run.launcher.pid} on ") == num
        assert run.num_starts == 1, run.errors


def test_fresh_renames_the_earlier_run_and_ends_what_is_left_of_it(tmp_path: Path) -> None:
    with StudyRun(tmp_path, [["live"], ["plan", 1], ["stay"]], WELL) as run:
        pid = int(run.wait_for_output(0))
        run.launcher.kill()
        run.launcher.wait()
        run.launcher = run.start("--fresh")
        assert run.end() == 0, run.errors
        assert "--fresh" not in run.facts(1)["arguments"]
        assert f"stream-launcher: the earlier run in {run.output_dir} is kept as {tmp_path.name}.1" in run.errors
        assert run.attempts(1) == [(0, 0)]
        assert (run.output_dir.with_name(f"{tmp_path.name}.1") / "simulations" / "0" / "attempt-0").is_dir()
        assert not Path(f"/proc/{pid}").exists()


def test_the_time_limit_holds_between_two_servers_too(tmp_path: Path) -> None:
    with StudyRun(tmp_path, LOST, arguments=("--time-limit", "00:00:02"), restarts=9) as run:
        assert run.end() == 75, run.errors
        assert run.num_starts < 9


def test_mistakes_in_study_json_are_told_before_anything_starts(tmp_path: Path) -> None:
    with StudyRun(tmp_path, WELL, arguments=("--set", "server.rank=3")) as run:
        assert run.end() == 2, run.errors
        assert "server.rank" in run.errors
        assert run.num_starts == 0, run.errors
        assert not run.output_dir.exists()


def test_check_is_what_the_server_says(tmp_path: Path) -> None:
    with StudyRun(tmp_path, WELL, arguments=("--check",)) as run:
        assert run.end() == 0, run.errors
        assert run.output == "checked\n"
        assert not run.output_dir.exists()


@pytest.mark.parametrize("text", ["10", "1:2", "00:60:00", "00:00:00", "x"])
def test_a_time_limit_that_is_no_time_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--config", str(tmp_path / "study.json"), "--time-limit", text])
    assert left.value.code == 2
    assert "HH:MM:SS" in capsys.readouterr().err


def test_help_tells_what_the_signals_do_and_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert not left.value.code
    said = capsys.readouterr().out
    assert "75 saved: run the same command again" in said
    assert "Ctrl-C" in said
    assert "--link" not in said


def test_fresh_has_nothing_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(NUMPY_STUDY), "--fresh", "--keep-saved"]) == 2
    assert "--fresh begins anew, with nothing saved: drop --keep-saved" in capsys.readouterr().err
