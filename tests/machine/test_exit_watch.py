"""The end of a command, as the parent of its process sees it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

COMMAND = [sys.executable, "-m", "tests.machine.watched_exit"]


@pytest.mark.parametrize(
    ("way", "status", "said"),
    [
        ("ours", 0, ""),
        ("ours_at_once", 3, ""),
        ("os._exit", 7, "ended with exit code 0 before the command was done"),
        ("exit", 7, "ended with exit code 0 before the command was done"),
        ("exit_1", 7, "ended with exit code 1 before the command was done"),
        ("sys.exit", 7, "ended with exit code 0 before the command was done"),
        ("killed", 7, "was killed by SIGKILL, as the kernel does when memory is short"),
        ("no_room", 7, "was killed by SIGBUS, as the kernel does when there is no room for memory"),
        ("terminated", -signal.SIGTERM, ""),
    ],
)
def test_an_end_that_is_not_ours_is_a_loss_and_a_signal_that_asks_for_the_end_is_none(
    way: str, status: int, said: str
) -> None:
    ended = subprocess.run([*COMMAND, way], capture_output=True, text=True, timeout=60)
    assert ended.returncode == status
    assert ended.stdout.startswith(said)
    assert ended.stdout.endswith(" [5]\n") == bool(said)


def test_signals_are_passed_on_to_the_child() -> None:
    with subprocess.Popen([*COMMAND, "hears"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, starter = map(int, parent.stdout.readline().split())
        assert child != parent.pid
        assert starter == os.getpid()
        parent.send_signal(signal.SIGUSR1)
        assert parent.stdout.readline() == "heard\n"
        assert parent.wait(60) == 75


def test_a_child_does_not_outlive_its_parent() -> None:
    with subprocess.Popen([*COMMAND, "hears"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline().split()[0]))
        parent.kill()
        child.wait(60)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("thread", "has not ended after 0.5 s: the thread 'plotter'; it is ended now"),
        ("atexit", "has not ended after 0.5 s: a function of atexit; it is ended now"),
        ("process", "has not ended after 0.5 s: process "),
        ("library", "has not ended after 1 s, held by a library: it is killed"),
        ("child", "(sleep 1234) was left behind and holds the output of this command"),
        ("grandchild", "(sleep 1234) was left behind and holds the output of this command"),
    ],
)
def test_what_keeps_a_command_from_ending_is_named_and_ended(way: str, said: str) -> None:
    ended = subprocess.run([*COMMAND, way], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 3, ended.stderr
    assert said in ended.stderr


def test_a_child_that_does_not_hold_the_output_is_nobodys_business() -> None:
    ended = subprocess.run([*COMMAND, "quiet child"], capture_output=True, text=True, timeout=100)
    left = psutil.Process(int(ended.stdout))
    assert left.is_running()
    left.kill()
    assert (ended.returncode, ended.stderr) == (3, "")
