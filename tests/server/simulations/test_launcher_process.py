"""Rank 0's child, as rank 0 handles it."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from stream_server.machine import processes
from stream_server.messages import launcher_link
from stream_server.server.simulations.launcher_process import LauncherProcess
from tests.fakes.rank_0 import Rank0
from tests.launcher.plans import plan

pytestmark = pytest.mark.slow

SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
DEADLINE_MS = 20_000


@pytest.fixture
def study(tmp_path: Path) -> Rank0:
    """A study that is written down, and not begun."""
    return Rank0(tmp_path, SLEEPING)


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{folder}/launcher"


@pytest.fixture
def rank_0(address: str) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        yield socket


def make(study: Rank0, address: str) -> LauncherProcess:
    return LauncherProcess(
        study.folder / "study.json", address, log=study.log, simulations=study.output_dir / "simulations"
    )


def begin(rank_0: "zmq.Socket[bytes]", study: Rank0) -> launcher_link.Attempt:
    """Tell the launcher what to run; the first attempt of which it then speaks."""
    rank_0.send(launcher_link.encode(launcher_link.Rank0Alive(incarnation=1)))
    while rank_0.poll(DEADLINE_MS):
        message = launcher_link.to_server(rank_0.recv())
        if isinstance(message, launcher_link.AskPlan):
            rank_0.send(launcher_link.encode(plan(1, output_dir=study.output_dir)))
        if isinstance(message, launcher_link.Attempt):
            return message
    raise TimeoutError


def kill(launcher: LauncherProcess) -> None:
    (child,) = [it for it in psutil.Process().children() if "stream_server.launcher.supervision.cli" in it.cmdline()]
    child.send_signal(signal.SIGKILL)
    assert launcher.wait(100)
    assert launcher.exit_code == -signal.SIGKILL


def test_a_launcher_that_is_told_to_leave_ends_its_simulations(
    study: Rank0, address: str, rank_0: "zmq.Socket[bytes]"
) -> None:
    with make(study, address) as launcher:
        begin(rank_0, study)
        assert launcher.exit_code is None
        launcher.leave()
        assert launcher.exit_code == 0
        assert study.processes() == []


def test_another_launcher_takes_over_the_simulations_of_one_that_was_killed(
    study: Rank0, address: str, rank_0: "zmq.Socket[bytes]"
) -> None:
    with make(study, address) as launcher:
        first = begin(rank_0, study)
        pid = int(study.wait_for_output(0))
        kill(launcher)
        launcher.restart()
        again = begin(rank_0, study)
        assert (again.simulation, again.attempt) == (first.simulation, first.attempt)
        assert again.goes_on
        os.kill(pid, 0)
    assert study.processes() == []


def test_simulations_of_a_killed_launcher_without_a_successor_are_ended(
    study: Rank0, address: str, rank_0: "zmq.Socket[bytes]"
) -> None:
    with make(study, address) as launcher:
        begin(rank_0, study)
        study.wait_for_output(0)
        kill(launcher)
        assert study.processes() != []
    assert [it for it in processes.running("STREAM_CONNECTION") if it.mark.startswith(str(study.folder))] == []
