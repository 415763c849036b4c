"""The launcher as a real process, with the test in the place of rank 0."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from stream_server.messages import launcher_link
from tests.fakes.rank_0 import Rank0
from tests.support.connections import SECURITY

pytestmark = pytest.mark.slow

QUIET = "import os, sys; print(sys.argv[1], os.environ['STREAM_SIMULATION_ID'], os.environ['STREAM_ATTEMPT'])"
SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("daemon", flush=True)
time.sleep(120)
"""


def test_simulations_run_one_after_the_other_until_rank_0_says_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "3")
    with Rank0(tmp_path, QUIET) as rank_0:
        rank_0.plan(2)
        for simulation in range(2):
            attempt = rank_0.wait_for(launcher_link.Attempt)
            assert attempt == launcher_link.Attempt(simulation=simulation, attempt=0, public_key=None)
            assert rank_0.wait_for_output(simulation) == f"{100.0 + simulation} {simulation} 0\n"
            rank_0.send(launcher_link.Finished(simulation=simulation))
        while rank_0.wait_for(launcher_link.Status).done < 2:
            pass
        rank_0.send(launcher_link.StopSimulations(reason="finished", grace_s=0.0))
        rank_0.wait_for(launcher_link.LauncherDone)
        assert rank_0.wait_for_end() == 0
        assert [type(message) for message in rank_0.seen[:2]] == [launcher_link.AskPlan, launcher_link.PlanAccepted]
        assert "simulation 1 finished" in rank_0.log.read_text()
        connection = json.loads((rank_0.folder_of(1) / "connection.json").read_text())
        assert (connection["simulation"], connection["attempt"], connection["security"]) == (1, 0, None)


def test_a_simulation_that_always_crashes_is_given_up_and_the_next_one_runs(tmp_path: Path) -> None:
    crashing = "import sys\nif sys.argv[1] == '101.0': raise SystemExit('no convergence')\nimport time; time.sleep(120)"
    with Rank0(tmp_path, crashing, "launcher.max_running=2") as rank_0:
        rank_0.plan(2)
        rank_0.send(launcher_link.ProgressReport(simulation=0, attempt=0, received=1, blocked=False))
        failed = rank_0.wait_for(launcher_link.Failed)
        gave_up = rank_0.wait_for(launcher_link.GaveUp)
        log = str(rank_0.folder_of(1, 0) / "output.log")
        reason = 'ended with exit code 1; the last line of its output: "no convergence"'
        assert failed == launcher_link.Failed(simulation=1, attempt=0, reason=reason, log=log)
        assert gave_up == launcher_link.GaveUp(
            simulation=1,
            attempts=2,
            reason=reason,
            log=str(rank_0.folder_of(1, 1) / "output.log"),
            redraw=False,
        )
        assert "no convergence" in Path(gave_up.log).read_text()


def test_a_mistake_that_a_program_passes_over_is_told_although_it_ends_with_exit_code_0(tmp_path: Path) -> None:
    careless = "print('stream_client, rank 0, stream_finish: the study has no field \"t\"'); print('done')"
    with Rank0(tmp_path, careless) as rank_0:
        rank_0.plan(1)
        reason = rank_0.wait_for(launcher_link.Failed).reason
        assert reason.startswith(
            'ended with exit code 0: the study has no field "t", but had not finished: no time step'
        )


def test_simulations_that_all_fail_at_once_stop_the_study_and_show_the_end_of_the_log(tmp_path: Path) -> None:
    with Rank0(tmp_path, "raise SystemExit('there is no licence')") as rank_0:
        rank_0.plan(3)
        text = rank_0.wait_for(launcher_link.TooMany).text
        assert text.startswith("3 attempts in a row failed and no time step ever came: simulation 2 ")
        assert "there is no licence" in text.splitlines()[-1]
        assert sum(isinstance(message, launcher_link.Attempt) for message in rank_0.seen) == 3


def test_a_simulation_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1)
        simulation = int(rank_0.wait_for_output(0))
        rank_0.send(launcher_link.ProgressReport(simulation=0, attempt=0, received=1, blocked=False))
        os.kill(simulation, signal.SIGKILL)
        assert rank_0.wait_for(launcher_link.Failed).reason == "was killed by SIGKILL"
        assert rank_0.wait_for(launcher_link.Attempt).attempt == 1
        assert int(rank_0.wait_for_output(0, 1)) != simulation


def test_a_simulation_that_hangs_is_killed_after_its_timeout(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING, "simulation.timeout_s=0.5") as rank_0:
        rank_0.plan(1)
        assert rank_0.wait_for(launcher_link.Failed).reason == "sent no new time step for 0.5 s (simulation.timeout_s)"


def test_the_end_of_rank_0_ends_the_launcher_and_every_process_of_its_simulations(tmp_path: Path) -> None:
    with Rank0(tmp_path, STUBBORN, "launcher.max_running=2") as rank_0:
        rank_0.plan(2)
        assert {rank_0.wait_for_output(simulation) for simulation in range(2)} == {"daemon\n"}
        assert rank_0.processes() != []
        rank_0.go()
        assert rank_0.wait_for_end() == 0
        assert rank_0.processes() == []
        assert "rank 0 of the server is gone" in rank_0.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_launcher_and_its_simulations(tmp_path: Path, number: signal.Signals) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1)
        rank_0.wait_for_output(0)
        rank_0.launcher.send_signal(number)
        rank_0.wait_for(launcher_link.LauncherDone)
        assert rank_0.wait_for_end() == 0
        assert rank_0.processes() == []


@pytest.mark.quiet
def test_a_second_signal_ends_the_launcher_within_5_s_however_stubborn_its_simulations(tmp_path: Path) -> None:
    with Rank0(tmp_path, STUBBORN) as rank_0:
        rank_0.plan(1)
        rank_0.wait_for_output(0)
        rank_0.launcher.send_signal(signal.SIGTERM)
        # Within half a second it would be the same signal.
        with pytest.raises(subprocess.TimeoutExpired):
            rank_0.launcher.wait(0.6)
        rank_0.launcher.send_signal(signal.SIGINT)
        sent_at = time.monotonic()
        rank_0.wait_for_end()
        assert time.monotonic() - sent_at < 5
        assert rank_0.processes() == []


def test_with_curve_each_attempt_has_a_key_pair_that_rank_0_is_told(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1, security=SECURITY)
        attempt = rank_0.wait_for(launcher_link.Attempt)
        rank_0.wait_for_output(0)
        security = json.loads((rank_0.folder_of(0) / "connection.json").read_text())["security"]
        assert security["client_public_key"] == attempt.public_key
        assert security["client_secret_key"] not in rank_0.log.read_text()
        for process in rank_0.processes():
            shown = Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
            assert security["client_secret_key"] not in shown


def test_a_study_without_a_command_gives_its_simulations_to_clients_that_attach(tmp_path: Path) -> None:
    with Rank0(tmp_path, None) as rank_0:
        rank_0.plan(1)
        rank_0.send(launcher_link.AttachRequest(token=5, simulation=None))
        assert rank_0.wait_for(launcher_link.Attached) == launcher_link.Attached(token=5, simulation=0, attempt=0)
        rank_0.send(launcher_link.AttachRequest(token=6, simulation=9))
        assert rank_0.wait_for(launcher_link.NoneLeft).text == "simulation 9 is not in the study"


def test_folders_of_finished_simulations_go_when_the_study_keeps_failed_ones_only(tmp_path: Path) -> None:
    script = "import time\nprint('up', flush=True)\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)"
    with Rank0(tmp_path, script, "simulation.keep_folders=failed") as rank_0:
        rank_0.plan(2)
        rank_0.wait_for_output(0)
        rank_0.send(launcher_link.Finished(simulation=0))
        while rank_0.wait_for(launcher_link.Status).done < 1:
            pass
        (rank_0.folder_of(0) / "go").touch()
        rank_0.wait_for_output(1)
        assert not rank_0.folder_of(0).exists()


def test_a_launcher_whose_rank_0_is_gone_removes_the_folder_of_the_sockets(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1)
        rank_0.wait_for(launcher_link.Attempt)
        folder = Path(rank_0.private.name)
        rank_0.go()
        assert rank_0.wait_for_end() == 0
        assert not folder.exists()


def test_the_folder_of_a_rank_0_that_was_killed_after_its_launcher_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with Rank0(tmp_path, None) as killed:
        killed.plan(1)
        killed.send(launcher_link.StopSimulations(reason="finished", grace_s=0.0))
        assert killed.wait_for_end() == 0
        killed.kill_and_restart_launcher()
        killed.plan(1)
        assert Path(killed.private.name).exists()
        killed.send(launcher_link.StopSimulations(reason="finished", grace_s=0.0))
        assert killed.wait_for_end() == 0
        with Rank0(tmp_path, None) as following:
            following.plan(1, incarnation=2)
            assert not Path(killed.private.name).exists()
            assert Path(following.private.name).exists()


def test_jobs_may_end_by_themselves_within_the_grace_of_a_stop(tmp_path: Path) -> None:
    ending = "import pathlib, time\nwhile not pathlib.Path('../../../go').exists(): time.sleep(0.01)\nprint('done')"
    with Rank0(tmp_path, ending) as rank_0:
        rank_0.plan(1)
        rank_0.wait_for(launcher_link.Attempt)
        rank_0.send(launcher_link.Finished(simulation=0))
        rank_0.send(launcher_link.StopSimulations(reason="finished", grace_s=30.0))
        (rank_0.output_dir / "go").touch()
        assert rank_0.wait_for_end() == 0
        assert (rank_0.folder_of(0) / "output.log").read_text() == "done\n"
