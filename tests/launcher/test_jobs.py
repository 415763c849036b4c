"""Real processes: a job is over when nothing of it is left."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stream_server.launcher import processes
from stream_server.launcher.job_spec import Ended, JobSpec
from stream_server.launcher.jobs import SHELL, LocalJobs
from stream_server.launcher.processes import Leader

GRACE_S = 0.3
DEADLINE_S = 20.0


@pytest.fixture
def jobs() -> Iterator[LocalJobs]:
    with LocalJobs(grace_s=GRACE_S) as jobs:
        yield jobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt with a blank"
    folder.mkdir()
    return folder


def spec(folder: Path, *command: str, **environment: str) -> JobSpec:
    mark = str(folder / "connection.json")
    return JobSpec(
        command=command,
        environment={"PATH": os.environ["PATH"], "STREAM_CONNECTION": mark, **environment},
        folder=folder,
        marks=frozenset({mark}),
    )


def python(folder: Path, code: str) -> JobSpec:
    return spec(folder, sys.executable, "-c", code)


def ended(jobs: LocalJobs) -> Ended:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := jobs.poll(time.monotonic())):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found[0]


def output(folder: Path, contains: str) -> str:
    """The log of a job, once it `contains` something."""
    deadline = time.monotonic() + DEADLINE_S
    while contains not in (text := _read(folder / "output.log")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return text


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def has_ended(pid: int) -> bool:
    """Nothing runs under this number; init may not have collected it yet."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_exit_code_of_a_job_is_that_of_its_command(jobs: LocalJobs, folder: Path, code: int) -> None:
    jobs.submit(spec(folder, "sh", "-c", f"exit {code}"))
    assert ended(jobs) == Ended(folder=folder, exit_code=code, reason=f"ended with exit code {code}")
    assert jobs.running == set()


def test_a_command_is_run_as_a_list_and_never_read_by_a_shell(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(spec(folder, "printf", "%s|", "a b", "$HOME", "`id`", "; exit 9", '"', "'", "*"))
    assert ended(jobs).exit_code == 0
    assert (folder / "output.log").read_text() == "a b|$HOME|`id`|; exit 9|\"|'|*|"


def test_the_log_holds_both_outputs_and_the_job_runs_in_its_folder(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(spec(folder, "sh", "-c", "pwd; echo wrong >&2"))
    ended(jobs)
    assert (folder / "output.log").read_text() == f"{folder}\nwrong\n"


def test_a_job_has_the_environment_it_is_given_and_no_other(
    jobs: LocalJobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    jobs.submit(spec(folder, "env", COLOUR="green"))
    ended(jobs)
    lines = (folder / "output.log").read_text().splitlines()
    assert "COLOUR=green" in lines
    assert not any(line.startswith("PMI_RANK") for line in lines)


def test_a_job_reads_nothing_from_our_input(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(spec(folder, "readlink", "/proc/self/fd/0"))
    ended(jobs)
    assert (folder / "output.log").read_text() == "/dev/null\n"


def test_a_job_runs_in_a_session_of_its_own(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(python(folder, "import os; print(os.getsid(0))"))
    ended(jobs)
    assert int((folder / "output.log").read_text()) not in (os.getsid(0), os.getpgid(0))


@pytest.mark.parametrize("command", ["heat_solver", "./heat_solver", "/no/such/solver"])
def test_a_command_that_does_not_exist_is_a_failure_that_says_so(jobs: LocalJobs, folder: Path, command: str) -> None:
    jobs.submit(spec(folder, command))
    text = f"the command '{command}' was not found or cannot be executed"
    assert jobs.poll(time.monotonic()) == [Ended(folder=folder, exit_code=127, reason=text)]
    assert (folder / "output.log").read_text() == f"{text}\n"


def test_a_killed_simulation_is_told_from_one_that_left(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(python(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ended(jobs) == Ended(folder=folder, exit_code=137, reason="was killed by SIGKILL")


def test_a_job_whose_leader_is_killed_has_ended_and_takes_its_processes_with_it(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(python(folder, "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)"))
    leader, simulation = (int(text) for text in output(folder, "\n").split())
    os.kill(leader, 9)
    assert ended(jobs) == Ended(folder=folder, exit_code=None, reason="was killed from outside")
    assert has_ended(simulation)


def test_cancel_is_term_first(jobs: LocalJobs, folder: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    jobs.submit(python(folder, code))
    output(folder, "up")
    jobs.cancel(folder, time.monotonic())
    assert jobs.busy
    assert ended(jobs).exit_code == 5


def test_a_job_can_be_cancelled_at_once_after_it_was_submitted(jobs: LocalJobs, folder: Path) -> None:
    jobs.submit(spec(folder, "sleep", "60"))
    jobs.cancel(folder, time.monotonic())
    assert ended(jobs).exit_code != 0


STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("up", os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_grandchild_that_ignores_term_is_killed_after_the_grace(jobs: LocalJobs, folder: Path) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    jobs.submit(spec(folder, "sh", "-c", f"{sys.executable} stubborn.py & wait"))
    stubborn = int(output(folder, "\n").split()[1])
    begin = time.monotonic()
    jobs.cancel(folder, begin)
    ended(jobs)
    assert has_ended(stubborn)
    assert time.monotonic() - begin < DEADLINE_S / 2


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("lives_s", [0, 60])
def test_a_daemon_is_found_and_killed(jobs: LocalJobs, folder: Path, lives_s: int) -> None:
    (folder / "daemon.py").write_text(DAEMON)
    jobs.submit(spec(folder, sys.executable, "daemon.py", str(lives_s)))
    daemon = int(output(folder, "\n").split()[1])
    if lives_s:
        jobs.cancel(folder, time.monotonic())
    ended(jobs)
    assert has_ended(daemon)


def test_cancelling_one_job_leaves_the_others_alone(jobs: LocalJobs, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        jobs.submit(spec(folder, "sleep", "60"))
    jobs.cancel(folders[0], time.monotonic())
    assert ended(jobs).folder == folders[0]
    assert jobs.running == {folders[1]}
    assert jobs.poll(time.monotonic()) == []


def test_leaving_kills_what_still_runs(folder: Path) -> None:
    with LocalJobs() as jobs:
        jobs.submit(python(folder, STUBBORN))
        stubborn = int(output(folder, "\n").split()[1])
    assert has_ended(stubborn)


def begin(folder: Path, *command: str) -> "tuple[subprocess.Popen[bytes], Leader, frozenset[str]]":
    """A job as another launcher has left it: process, leader and marks."""
    job = spec(folder, *command)
    line = ["setsid", "/bin/sh", "-c", SHELL, str(folder), *command]
    process = subprocess.Popen(line, env=dict(job.environment), cwd=folder)
    # One that is over already has no start time any more.
    return process, Leader.of(process.pid) or Leader(pid=process.pid, started=0), job.marks


@pytest.mark.parametrize("is_known", [True, False])
def test_an_adopted_job_runs_until_its_processes_end_and_then_ended_as_it_says(
    jobs: LocalJobs, folder: Path, is_known: bool
) -> None:
    waiting = (
        "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(4)"
    )
    process, leader, marks = begin(folder, sys.executable, "-c", waiting)
    jobs.adopt(folder, marks, leader if is_known else None)
    output(folder, "up")
    assert jobs.poll(time.monotonic()) == []
    (folder / "go").touch()
    process.wait()
    assert ended(jobs) == Ended(folder=folder, exit_code=4, reason="ended with exit code 4")


def test_an_adopted_job_that_had_ended_says_how(jobs: LocalJobs, folder: Path) -> None:
    process, leader, marks = begin(folder, "false")
    process.wait()
    jobs.adopt(folder, marks, leader)
    assert ended(jobs) == Ended(folder=folder, exit_code=1, reason="ended with exit code 1")


def test_an_adopted_job_of_which_nothing_is_left_ended_unseen(jobs: LocalJobs, folder: Path) -> None:
    jobs.adopt(folder, frozenset({str(folder / "connection.json")}), Leader(pid=os.getpid(), started=0))
    assert ended(jobs) == Ended(
        folder=folder, exit_code=None, reason="ended while no launcher watched it, without a word", unseen=True
    )


def test_an_adopted_job_whose_leader_is_gone_runs_as_long_as_any_process_of_it(jobs: LocalJobs, folder: Path) -> None:
    process, leader, marks = begin(
        folder, sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    )
    simulation = int(output(folder, "\n"))
    process.kill()
    process.wait()
    jobs.adopt(folder, marks, leader)
    assert jobs.poll(time.monotonic()) == []
    os.kill(simulation, 9)
    assert ended(jobs).unseen


def test_an_adopted_job_can_be_cancelled(jobs: LocalJobs, folder: Path) -> None:
    process, leader, marks = begin(folder, sys.executable, "-c", STUBBORN)
    output(folder, "up")
    jobs.adopt(folder, marks, leader)
    jobs.cancel(folder, time.monotonic())
    assert not ended(jobs).unseen
    process.wait()


def test_one_dead_adopted_job_does_not_hide_the_others(jobs: LocalJobs, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for each in folders:
        each.mkdir()
    process, leader, marks = begin(folders[1], "sleep", "60")
    jobs.adopt(folders[0], frozenset({str(folders[0] / "connection.json")}), None)
    jobs.adopt(folders[1], marks, leader)
    assert ended(jobs).folder == folders[0]
    process.kill()
    process.wait()
    for each in processes.running("STREAM_CONNECTION"):
        if each.mark in marks:
            os.kill(each.pid, 9)
    assert ended(jobs).folder == folders[1]
