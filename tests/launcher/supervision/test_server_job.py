"""Real processes: a server has ended when nothing of it is left, wherever its processes went."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.launcher.backends.backend import JobState, JobStatus
from stream_server.launcher.supervision import server_job
from stream_server.launcher.supervision.server_job import MARK, LocalServer
from stream_server.machine import processes
from stream_server.machine.processes import Leader
from tests.support.timing import until

DEADLINE_S = 60.0
RANK = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
# A rank in a session of its own, as below a proxy of mpirun.
SPREAD = f"""
import subprocess, sys, time
for _ in range(2):
    rank = subprocess.Popen([sys.executable, "-c", {RANK!r}], start_new_session=True, stdout=subprocess.PIPE)
    rank.stdout.readline()
open(sys.argv[1], "w").write("up")
time.sleep(60)
"""


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "mark")
    processes.send(alive(str(tmp_path / "mark")), signal.SIGKILL)


def alive(mark: str) -> set[int]:
    return {it.pid for it in processes.running(MARK) if it.mark == mark}


def ended(job: LocalServer) -> bool:
    job.look(time.monotonic())
    return job.is_over


def spread(mark: str) -> LocalServer:
    """A server of three processes in as many sessions."""
    file = Path(mark).with_name("up")
    job = LocalServer.start([sys.executable, "-c", SPREAD, str(file)], os.environ, mark)
    until(file.exists)
    assert len(alive(mark)) == 3
    return job


def test_the_exit_status_is_that_of_the_first_process(mark: str) -> None:
    job = LocalServer.start([sys.executable, "-c", "raise SystemExit(6)"], os.environ, mark)
    until(lambda: ended(job))
    assert job.end == JobStatus(state=JobState.ENDED, exit_code=6, reason="ended with exit code 6")


def test_killing_it_reaches_every_process_wherever_it_is(mark: str) -> None:
    job = spread(mark)
    job.kill(time.monotonic())
    until(lambda: ended(job))
    assert alive(mark) == set()


def test_what_outlives_its_first_process_is_killed(mark: str) -> None:
    job = spread(mark)
    assert job.leader is not None
    os.kill(job.leader.pid, signal.SIGKILL)
    until(lambda: ended(job))
    assert job.end == JobStatus(state=JobState.ENDED, exit_code=137, reason="was killed by SIGKILL")
    assert alive(mark) == set()


def test_a_rank_that_told_its_number_is_killed_even_without_the_mark(mark: str) -> None:
    job = spread(mark)
    with subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE) as stray:
        assert stray.stdout is not None
        stray.stdout.readline()
        leader = Leader.of(stray.pid)
        assert leader is not None
        job.ranks = {0: leader}
        job.kill(time.monotonic())
        assert stray.wait(DEADLINE_S) == -signal.SIGKILL
    until(lambda: ended(job))


def test_a_number_that_was_used_again_is_not_killed(mark: str) -> None:
    job = spread(mark)
    own = Leader.of(os.getppid())
    assert own is not None
    job.ranks = {0: Leader(pid=own.pid, started=own.started - 1)}
    job.kill(time.monotonic())
    until(lambda: ended(job))
    assert Leader.of(own.pid) == own


def test_a_running_server_can_be_adopted_and_killed(mark: str) -> None:
    first = spread(mark)
    job = LocalServer.adopt(mark, None)
    assert job is not None
    assert job.leader == first.leader
    assert not ended(job)
    job.kill(time.monotonic())
    until(lambda: ended(first) and ended(job))
    assert job.end == JobStatus(state=JobState.ENDED, reason="has ended")
    assert alive(mark) == set()


def test_there_is_nothing_to_adopt_when_nothing_runs(mark: str) -> None:
    assert LocalServer.adopt(mark, None) is None
    assert LocalServer.adopt(mark, Leader(pid=os.getpid(), started=0)) is None


def test_a_server_of_which_only_the_first_process_can_be_seen_is_adopted(mark: str) -> None:
    # As of a program that has cleared its environment.
    leader = Leader.of(os.getpid())
    job = LocalServer.adopt(mark, leader)
    assert job is not None
    assert job.leader == leader


def test_a_process_that_is_stopped_is_found_after_a_while_unless_it_goes_on(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_job, "LOOK_S", 0.0)
    job = spread(mark)
    assert job.leader is not None
    (pid, *_) = alive(mark) - {job.leader.pid}
    os.kill(pid, signal.SIGSTOP)
    until(lambda: any(it.stopped for it in processes.running(MARK) if it.pid == pid))
    job.look(100.0)
    job.look(100.0 + server_job.STOPPED_S)
    assert job.stopped_pid(99.0 + server_job.STOPPED_S) is None
    assert job.stopped_pid(100.0 + server_job.STOPPED_S) == pid
    os.kill(pid, signal.SIGCONT)
    until(lambda: not any(it.stopped for it in processes.running(MARK) if it.pid == pid))
    job.look(101.0 + server_job.STOPPED_S)
    assert job.stopped_pid(999.0) is None
    job.kill(time.monotonic())
    until(lambda: ended(job))
