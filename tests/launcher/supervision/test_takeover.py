"""A launcher that is killed loses nothing: the next one takes over what runs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from stream_server.config import load
from stream_server.launcher.backends.backend import EXIT_FILE
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.simulations.ensemble import POLL_S
from stream_server.messages import launcher_link
from tests.fakes.rank_0 import Rank0
from tests.launcher.plans import plan
from tests.launcher.study_run import SLEEPING, StudyRun, journal_of
from tests.support.failpoints import failpoints
from tests.support.launch import MPICH_PREFIX

pytestmark = pytest.mark.slow

STAYING = [["live"], ["plan", 1], ["wait_for_file", "go"], ["finish", 0], ["stop_all"], ["report", 0]]
QUICK = [
    ["live"],
    ["plan", 1],
    ["wait_for_attempts", 1],
    ["wait_for_output"],
    ["finish", 0],
    ["stop_all"],
    ["report", 0],
]


def test_a_restarted_launcher_takes_over_the_server_and_its_simulations(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING, ranks=2) as run:
        pid = run.wait_for_output(0)
        config = load(run.folder / "study.json", ["buffer.capacity=30", "training.clip_norm=2"])
        (run.output_dir / "study.json").write_text(json.dumps(config.resolved()))
        run.kill_and_restart()
        run.wait_until(lambda: run.attempts(0) == [(0, 0), (0, 0)])
        assert run.wait_for_output(0) == pid
        told = "the server trains on with the study.json of its start; once it is started again, this holds: "
        assert f"{told}buffer.capacity, buffer.watermark, training.clip_norm" in run.log
        (tmp_path / "go").touch()
        assert run.end() == 0
        assert run.num_starts == 1


def test_a_launcher_whose_study_the_server_could_not_go_on_with_leaves_it_alone(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING) as run:
        pid = run.wait_for_output(0)
        (run.output_dir / "study.json").write_text(json.dumps(load(run.folder / "study.json").resolved()))
        run.launcher.kill()
        run.launcher.wait()
        refused = run.start("--set", "study.seed=7")
        assert refused.wait(60) == 2
        assert "study.seed: 7, but the run began with 0" in run.errors
        run.launcher = run.start()
        run.wait_until(lambda: len(run.attempts(0)) == 2)
        assert run.wait_for_output(0) == pid
        (tmp_path / "go").touch()
        assert run.end() == 0
        assert run.num_starts == 1


def test_a_restarted_launcher_notices_the_end_of_a_server_that_it_did_not_start(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING, QUICK, ranks=2) as run:
        pid = run.wait_for_output(0)
        run.kill_and_restart()
        run.wait_until(lambda: len(run.attempts(0)) == 2)
        os.kill(run.facts(0, 1)["pid"], signal.SIGKILL)
        assert run.end() == 0
        assert run.attempts(1) == [(0, 0)]
        assert run.wait_for_output(0).startswith(pid)
        assert "restart 1 of 3" in run.errors


def test_a_server_that_was_lost_while_no_launcher_ran_is_started_and_the_simulations_go_on(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING, QUICK) as run:
        pid = run.wait_for_output(0)
        run.launcher.kill()
        run.launcher.wait()
        os.kill(run.facts(0)["pid"], signal.SIGKILL)
        run.launcher = run.start()
        assert run.end() == 0
        assert run.attempts(1) == [(0, 0)]
        assert run.wait_for_output(0).startswith(pid)


def test_a_simulation_that_ended_while_no_launcher_ran_is_judged_by_its_exit_code(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING) as run:
        pid = int(run.wait_for_output(0))
        run.launcher.kill()
        run.launcher.wait()
        os.kill(pid, signal.SIGKILL)
        while not (run.folder_of(0) / "job.exit").exists():
            pass
        run.launcher = run.start()
        run.wait_until(lambda: (0, 1) in run.attempts(0))
        (failed,) = [message for message in run.heard(0) if isinstance(message, launcher_link.Failed)]
        assert failed.reason == "was killed by SIGKILL"
        (ended,) = [record for record in run.journal if record["message"] == "Failed"]
        assert not ended["excuse"]


def test_a_simulation_of_which_nothing_is_left_has_not_failed_by_itself(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING) as run:
        run.wait_for_output(0)
        run.launcher.kill()
        run.launcher.wait()
        for process in run.processes("STREAM_CONNECTION"):
            os.kill(process.pid, signal.SIGKILL)
        run.launcher = run.start()
        run.wait_until(lambda: (0, 1) in run.attempts(0))
        (ended,) = [record for record in run.journal if record["message"] == "Failed"]
        assert ended["excuse"]


def test_a_rank_that_is_stopped_under_a_launcher_that_did_not_start_it_is_killed(tmp_path: Path) -> None:
    with StudyRun(tmp_path, STAYING, QUICK, ranks=2) as run:
        run.wait_for_output(0)
        run.kill_and_restart()
        run.wait_until(lambda: len(run.attempts(0)) == 2)
        os.kill(run.facts(0, 1)["pid"], signal.SIGSTOP)
        assert run.end() == 0
        assert run.num_starts == 2


# `make test-all` tries the others.
RECORDS = [
    ("before", 1),
    *(pytest.param("after", record, marks=[] if record == 5 else pytest.mark.full) for record in range(1, 10)),
]


@pytest.mark.parametrize(("place", "record"), RECORDS)
def test_a_launcher_that_is_killed_at_any_record_is_replaced_and_the_study_ends(
    tmp_path: Path, place: str, record: int
) -> None:
    environment = failpoints(tmp_path / "met", f"launcher.{place}_journal=kill@{record}")
    with StudyRun(tmp_path, QUICK, environment=environment) as run:
        assert run.launcher.wait(100) == -signal.SIGKILL
        run.launcher = run.start()
        assert run.end() == 0
        assert run.num_starts <= 2
        assert len(list((run.output_dir / "simulations" / "0").iterdir())) <= 2


@pytest.mark.parametrize(
    "name",
    [
        "after_submit",
        "after_server_start",
        *(
            pytest.param(it, marks=pytest.mark.full)
            for it in ("before_submit", "before_server_start", "before_replan", "after_replan")
        ),
    ],
)
def test_a_launcher_that_is_killed_between_two_records_is_replaced_and_the_study_ends(
    tmp_path: Path, name: str
) -> None:
    environment = failpoints(tmp_path / "met", f"launcher.{name}=kill")
    with StudyRun(tmp_path, QUICK, environment=environment) as run:
        assert run.launcher.wait(100) == -signal.SIGKILL
        run.launcher = run.start()
        assert run.end() == 0
        assert run.num_starts == 1


def test_rank_0_can_start_another_launcher_which_takes_over_its_simulations(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1)
        pid = rank_0.wait_for_output(0)
        rank_0.kill_and_restart_launcher()
        rank_0.plan(1, attempt=0)
        assert rank_0.wait_for(launcher_link.Attempt) == launcher_link.Attempt(
            simulation=0, attempt=0, public_key=None, goes_on=True
        )
        assert rank_0.wait_for_output(0) == pid
        os.kill(int(pid), signal.SIGKILL)
        assert rank_0.wait_for(launcher_link.Failed).reason == "was killed by SIGKILL"
        assert rank_0.wait_for(launcher_link.Attempt).attempt == 1


def test_a_launcher_answers_whenever_rank_0_says_that_it_is_there(tmp_path: Path) -> None:
    with Rank0(tmp_path, None) as rank_0:
        rank_0.plan(2)
        status = rank_0.wait_for(launcher_link.Status)
        for _ in range(2):
            rank_0.send(launcher_link.Rank0Alive(incarnation=1))
            assert rank_0.wait_for(launcher_link.Status) == status


def test_a_given_up_simulation_is_given_up_again_by_the_next_launcher(tmp_path: Path) -> None:
    with Rank0(tmp_path, "import sys; sys.exit(3)", "simulation.retries=0") as rank_0:
        rank_0.plan(1)
        first = rank_0.wait_for(launcher_link.GaveUp)
        rank_0.kill_and_restart_launcher()
        rank_0.plan(1, attempt=0)
        assert rank_0.wait_for(launcher_link.GaveUp) == first


def test_a_client_that_attached_keeps_its_attempt_under_the_next_launcher(tmp_path: Path) -> None:
    with Rank0(tmp_path, None) as rank_0:
        rank_0.plan(2)
        rank_0.send(launcher_link.AttachRequest(token=5, simulation=1, client="b"))
        rank_0.wait_for(launcher_link.Attached)
        rank_0.kill_and_restart_launcher()
        rank_0.plan(2, attempt=0)
        assert rank_0.wait_for(launcher_link.Attempt) == launcher_link.Attempt(
            simulation=1, attempt=0, public_key=None, attached=True, goes_on=True
        )
        rank_0.send(launcher_link.AttachRequest(token=6, simulation=None, client="b"))
        assert rank_0.wait_for(launcher_link.Attached) == launcher_link.Attached(
            token=6, simulation=1, attempt=0, client="b"
        )
        rank_0.send(launcher_link.AttachRequest(token=7, simulation=None, client="c"))
        assert rank_0.wait_for(launcher_link.Attached) == launcher_link.Attached(
            token=7, simulation=0, attempt=1, client="c"
        )


def test_a_new_run_by_hand_ends_what_is_left_of_the_last_and_never_uses_a_number_again(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as first:
        first.plan(1)
        first.wait_for_output(0)
        first.launcher.kill()
        first.launcher.wait()
        (shell, simulation) = first.processes()
        with Rank0(tmp_path, SLEEPING) as second:
            second.plan(1)
            assert second.wait_for(launcher_link.Attempt).attempt == 1
            assert {shell.pid, simulation.pid} & {it.pid for it in second.processes()} == set()


def test_the_journal_of_a_run_by_hand_tells_the_whole_story(tmp_path: Path) -> None:
    with Rank0(tmp_path, SLEEPING) as rank_0:
        rank_0.plan(1)
        rank_0.wait_for_output(0)
        rank_0.go()
        assert rank_0.wait_for_end() == 0
        assert [record["message"] for record in journal_of(rank_0.output_dir)] == [
            *("LauncherStarted", "PlanTaken", "AttemptStarting", "AttemptStarted", "LauncherLeft"),
        ]
        with Journal(rank_0.output_dir) as journal:
            assert journal.history.ended_in_order
            assert journal.history.highest == {0: 0}


# Simulation 0 fails once, and takes simulation 1 with it. Now and then MPICH's hydra overlooks that a rank has ended:
# then the rank of simulation 1 does, after 5 s, what hydra should have done, which is to kill it and its shell.
FAILING = """
import os, signal, time
from mpi4py import MPI
MPI.COMM_WORLD.barrier()
print(os.getpid(), flush=True)
simulation, attempt = os.environ["STREAM_SIMULATION_ID"], os.environ["STREAM_ATTEMPT"]
if (simulation, attempt) == ("0", "0"):
    os._exit(3)
if attempt == "0":
    time.sleep(5)
    for pid in os.getppid(), os.getpid():
        os.kill(pid, signal.SIGKILL)
time.sleep(120)
"""
TOGETHER = (
    "simulation.per_job=2",
    "launcher.max_running=2",
    f'simulation.job.mpirun=["{MPICH_PREFIX / "bin" / "mpirun"}"]',
)
EXCUSE = "not counted against it, for simulation 0, which shared the job, failed"


# A rank of simulation 1 fails, of which MPICH's mpirun takes no notice: all others wait for it in MPI_Init.
UNNOTICED = """
import os, time
names = ("STREAM_SIMULATION_ID", "STREAM_ATTEMPT", "PMI_RANK")
print(os.getpid(), flush=True)
if [os.environ[name] for name in names] == ["1", "0", "3"]:
    os._exit(3)
from mpi4py import MPI
time.sleep(120)
"""
# Simulation 1 fails at once, simulation 0 ends when the test says so.
ONE_FAILS = """
import os, sys, time
if os.environ["STREAM_SIMULATION_ID"] == "1":
    os._exit(3)
print("running", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def failed(rank_0: Rank0) -> tuple[int, str]:
    """The simulation, and why it failed, without the last line of its output."""
    message = rank_0.wait_for(launcher_link.Failed)
    return message.simulation, message.explanation.partition("; the last line")[0]


def test_of_a_job_that_fails_one_is_to_blame_and_each_is_tried_again_alone(tmp_path: Path) -> None:
    with Rank0(tmp_path, FAILING, *TOGETHER) as rank_0:
        rank_0.plan(2)
        assert failed(rank_0) == (0, "a rank ended with exit code 3")
        assert failed(rank_0) == (1, f"was ended with its job ({EXCUSE})")
        rank_0.wait_for_output(0, 1)
        rank_0.send(launcher_link.ProgressReport(simulation=0, attempt=1, received=1, blocked=False))
        rank_0.wait_for_output(1, 1)
        for simulation in (0, 1):
            assert not (rank_0.folder_of(simulation, 1) / "ranks.exit").exists()
        rank_0.go()
        assert rank_0.wait_for_end() == 0
        assert rank_0.processes() == []


def arm(patch: pytest.MonkeyPatch, folder: Path, point: str) -> None:
    for name, value in failpoints(folder, point).items():
        patch.setenv(name, value)


def journal(rank_0: Rank0) -> list[dict[str, object]]:
    return journal_of(rank_0.output_dir)


# The fifth is that of the cancel.
@pytest.mark.parametrize("killed", [False, True])
def test_one_that_failed_is_to_blame_for_those_that_waited_for_it_until_their_time_was_up(
    tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if killed:
        arm(monkeypatch, tmp_path / "met", "launcher.after_journal=kill@5")
    with Rank0(tmp_path, UNNOTICED, *TOGETHER, "simulation.ranks=2", "simulation.timeout_s=8") as rank_0:
        rank_0.plan(2)
        if killed:
            assert rank_0.wait_for_end() == -signal.SIGKILL
            rank_0.kill_and_restart_launcher()
            rank_0.plan(2, attempt=0)
        told = dict([failed(rank_0), failed(rank_0)])
        excuse = "not counted against it, for simulation 1, which shared the job, failed"
        assert told == {0: f"was ended with its job ({excuse})", 1: "a rank ended with exit code 3"}
        ends = {it["simulation"]: not it["excuse"] for it in journal(rank_0) if it["message"] == "Failed"}
        assert ends == {0: False, 1: True}
        # The next launcher knows that it was cancelled, and does not wait for the time to be up again.
        cancels = [it["simulation"] for it in journal(rank_0) if it["message"] == "AttemptCancelled"]
        assert sorted(cancels) == [0, 1]


def test_the_folder_of_a_job_stays_until_all_in_it_are_judged(tmp_path: Path) -> None:
    with Rank0(tmp_path, ONE_FAILS, *TOGETHER, "simulation.keep_folders=failed") as rank_0:
        rank_0.plan(2)
        rank_0.wait_until(lambda: "simulation 1, attempt 0: a rank ended with exit code 3" in rank_0.log.read_text())
        rank_0.send(launcher_link.Finished(simulation=0))
        rank_0.wait_for_output(0)
        (rank_0.folder_of(0) / "go").touch()
        message = rank_0.wait_for(launcher_link.Failed)
        assert (message.simulation, message.reason) == (1, "a rank ended with exit code 3")
        # It never wrote anything: mpirun's words are in the log of the first.
        assert message.log == str(rank_0.folder_of(0) / "output.log")
        rank_0.wait_until(lambda: not rank_0.folder_of(0).exists())


def test_the_folder_goes_also_when_the_server_has_all_only_after_the_end_of_the_job(tmp_path: Path) -> None:
    with Rank0(tmp_path, "", "simulation.keep_folders=failed") as rank_0:
        rank_0.plan(1)
        rank_0.wait_until((rank_0.folder_of(0) / EXIT_FILE).exists)
        # Until the launcher, too, has seen the end.
        time.sleep(2 * POLL_S)
        rank_0.send(launcher_link.Finished(simulation=0))
        rank_0.wait_until(lambda: not rank_0.folder_of(0).exists())


def test_a_job_is_that_of_the_first_that_could_be_prepared(tmp_path: Path) -> None:
    overrides = ("simulation.per_job=3", "launcher.max_running=3", *TOGETHER[2:])
    with Rank0(tmp_path, SLEEPING, *overrides) as rank_0:
        blocked = rank_0.output_dir / "simulations" / "0"
        blocked.parent.mkdir(parents=True)
        blocked.write_text("in the way")
        rank_0.plan(3)
        for simulation in (1, 2):
            rank_0.wait_for_output(simulation)
        assert rank_0.wait_for(launcher_link.Failed).reason.startswith("could not be prepared: ")
        starting = [it for it in journal(rank_0) if it["message"] == "AttemptStarting"]
        job = str(rank_0.folder_of(1))
        assert [(it["simulation"], it["job"], it["ranks"]) for it in starting] == [(1, job, 1), (2, job, 1)]


# What is written fifth is the end of the first one.
@pytest.mark.parametrize(
    "record", [3, pytest.param(4, marks=pytest.mark.full), 5, pytest.param(6, marks=pytest.mark.full)]
)
def test_a_launcher_that_is_killed_at_any_record_of_a_shared_job_blames_nobody_wrongly(
    tmp_path: Path, record: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm(monkeypatch, tmp_path / "met", f"launcher.after_journal=kill@{record}")
    with Rank0(tmp_path, FAILING, *TOGETHER) as rank_0:
        rank_0.send(launcher_link.Rank0Alive(incarnation=1))
        rank_0.wait_for(launcher_link.AskPlan)
        rank_0.send(plan(2, output_dir=rank_0.output_dir))
        assert rank_0.wait_for_end() == -signal.SIGKILL
        rank_0.kill_and_restart_launcher()
        rank_0.plan(2, attempt=0)
        rank_0.wait_for_output(0, 1)
        rank_0.send(launcher_link.ProgressReport(simulation=0, attempt=1, received=1, blocked=False))
        rank_0.wait_for_output(1, 1)
        ended = [it for it in journal(rank_0) if it["message"] == "Failed"]
        ends = {(it["simulation"], it["attempt"]): not it["excuse"] for it in ended}
        # Before its job was submitted, nobody has done anything wrong.
        assert ends == {(0, 0): record > 3, (1, 0): False}
