"""The program that an adapter starts, and the signals that end both."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stream_server.adapters import program as module
from stream_server.adapters.program import InterruptedBySignal, Interruptions, Program
from stream_server.errors import ConfigError
from tests.support.timing import until

LIMIT_S = 60.0
STUBBORN = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > ready; while :; do wait; done"
HEEDFUL = "trap 'echo got it > told; exit 7' INT TERM HUP; echo $$ > ready; while :; do sleep 0.01; done"
HAS_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def shell(line: str) -> Program:
    return Program(["sh", "-c", line], Interruptions())


def pid_in(name: str) -> int:
    return int(until(lambda: Path(name).exists() and Path(name).read_text().strip()))


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in HAS_ENDED
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("line", "status"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)])
def test_the_status_is_as_a_shell_gives_it(line: str, status: int) -> None:
    with shell(line) as program:
        assert program.wait(LIMIT_S) == status
        assert program.has_ended


def test_a_program_that_still_runs_has_no_status() -> None:
    with shell("sleep 1000") as program:
        assert program.wait(0.01) is None
        assert not program.has_ended
    assert program.wait() == 128 + signal.SIGTERM


def test_without_a_command_nothing_is_started() -> None:
    with Program([], Interruptions()) as program:
        assert program.wait() == 0
        assert not program.has_ended


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="'no-such-solver' cannot be started: No such file"):
        Program(["no-such-solver"], Interruptions()).__enter__()


def test_what_does_not_heed_term_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    monkeypatch.chdir(tmp_path)
    with shell(STUBBORN) as program:
        pid_in("ready")
        child = psutil.Process(pid_in("child"))
    assert program.wait() == 128 + signal.SIGKILL
    until(lambda: is_gone(child))


@pytest.mark.parametrize("number", module.SIGNALS)
def test_the_first_signal_interrupts_and_later_ones_are_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with Interruptions():
            with pytest.raises(InterruptedBySignal) as interrupted:
                signal.raise_signal(number)
            signal.raise_signal(number)
        assert interrupted.value.number == number
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptions():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_the_program_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))  # type: ignore[call-overload]
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with Interruptions() as interruptions, pytest.raises(InterruptedBySignal):
        Program(["sleep", "1000"], interruptions).__enter__()
    assert started[0].wait(LIMIT_S) == -signal.SIGTERM


# A program that runs in the background may have been started with some of them ignored.
ADAPTER = """
import signal, sys
for each in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
    signal.signal(each, signal.SIG_DFL)
from stream_server.adapters.program import InterruptedBySignal, Interruptions, Program
try:
    with Interruptions() as interruptions, Program(["sh", "-c", sys.argv[1]], interruptions) as program:
        program.wait()
except InterruptedBySignal as interrupted:
    sys.exit(128 + interrupted.number)
"""


@pytest.mark.parametrize("number", [*module.SIGNALS, signal.SIGKILL])
def test_a_program_is_told_of_the_end_of_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ADAPTER, HEEDFUL]) as adapter:
        program = psutil.Process(pid_in("ready"))
        assert os.getpgid(program.pid) == program.pid
        adapter.send_signal(number)
        assert adapter.wait(LIMIT_S) == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: is_gone(program))
    assert Path("told").read_text() == "got it\n"
