"""The process of the solver."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stream_server.adapters import follow_solver
from stream_server.adapters.follow_solver import InterruptedBySignal, Solver, interruptions
from stream_server.errors import ConfigError
from tests.support.timing import until

STUBBORN = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > ready; while :; do wait; done"


@pytest.fixture
def inherited(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("line", "status"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)])
def test_the_status_is_as_a_shell_gives_it(inherited: int, line: str, status: int) -> None:
    assert Solver(["sh", "-c", line], inherited=inherited).status == status


def test_a_program_that_is_not_there_is_told(inherited: int) -> None:
    with pytest.raises(ConfigError, match="'no-such-solver' cannot be started: No such file"):
        Solver(["no-such-solver"], inherited=inherited)


def test_what_does_not_heed_term_is_killed_with_what_it_has_started(
    inherited: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_solver, "GRACE_S", 0.1)
    monkeypatch.chdir(tmp_path)
    solver = Solver(["sh", "-c", STUBBORN], inherited=inherited)
    until(lambda: Path("ready").exists() and Path("ready").read_text().strip())
    child = psutil.Process(int(Path("child").read_text()))
    solver.end()
    assert solver.status == 128 + signal.SIGKILL
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_later_ones_are_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with interruptions():
            with pytest.raises(InterruptedBySignal) as interrupted:
                signal.raise_signal(number)
            signal.raise_signal(number)
        assert interrupted.value.number == number
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
