"""Waiting in tests: a limit counts what the machine can give."""

import os
import subprocess
import sys

import pytest

from tests.support import timing
from tests.support.timing import Clock, Deadline, completed, until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(50.0)
    monkeypatch.setattr(timing.time, "monotonic", clock)
    return clock


def test_on_an_idle_machine_a_second_is_a_second(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "crowding", lambda: 1.0)
    deadline = Deadline(10.0)
    clock.now += 9.9
    assert not deadline.has_passed
    clock.now += 0.2
    assert deadline.has_passed


def test_while_four_processes_share_a_core_a_second_is_a_quarter(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "crowding", lambda: 4.0)
    deadline = Deadline(10.0)
    clock.now += 39.0
    assert not deadline.has_passed
    clock.now += 2.0
    assert deadline.has_passed


def test_a_wait_gives_what_it_waited_for_or_says_what_there_was_instead() -> None:
    found = iter([0, "", "here"])
    assert until(lambda: next(found), look_s=0.0) == "here"
    with pytest.raises(AssertionError, match="not so after 0 s\nnothing at all"):
        until(lambda: False, 0.0, told=lambda: "nothing at all")


def test_no_machine_is_less_than_idle() -> None:
    assert timing.crowding() >= 1.0


def test_a_program_is_run_to_its_end_or_killed_in_time() -> None:
    done = completed([sys.executable, "-c", "print('out'); raise SystemExit('err')"], os.environ, 40.0)
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "err\n")
    with pytest.raises(subprocess.TimeoutExpired):
        completed(["sleep", "60"], os.environ, 0.0)
