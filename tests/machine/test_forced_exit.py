"""The forced exit of a process for which two signals were not enough."""

import signal
import subprocess
import sys
import time

import pytest

from stream_server.errors import EXIT_FORCED
from stream_server.machine.forced_exit import UrgentSignals

# It handles the signals, as we do, but no handler of Python runs while its main thread is in a call that none ends.
DEAF = """
import ctypes, signal
from stream_server.machine.forced_exit import ForcedExit
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: None)
with ForcedExit(lambda number: print(number, flush=True)):
    mutex = ctypes.create_string_buffer(64)
    print("ready", flush=True)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.quiet
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_process_within_5_s_whatever_it_does(second: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        assert it.stderr is not None
        try:
            assert it.stdout.readline() == "ready\n"
            it.send_signal(signal.SIGTERM)
            assert it.stdout.readline() == f"{signal.SIGTERM.value}\n"
            # Within half a second it would be the same one.
            with pytest.raises(subprocess.TimeoutExpired):
                it.wait(0.6)
            it.send_signal(second)
            sent_at = time.monotonic()
            assert it.wait(100) == EXIT_FORCED == 130
            assert time.monotonic() - sent_at < 5
            assert "has not ended after a second signal" in it.stderr.read()
        finally:
            it.kill()


def test_only_interrupts_and_terminations_are_urgent_and_echoes_are_none() -> None:
    urgent = UrgentSignals()
    came = [
        (signal.SIGUSR1, 0.0),
        (signal.SIGINT, 1.0),
        (signal.SIGTERM, 1.3),
        (signal.SIGUSR1, 1.6),
        (signal.SIGINT, 1.7),
        (signal.SIGINT, 2.3),
    ]
    assert [urgent.count(number, now) for number, now in came] == [0, 1, 1, 1, 2, 3]


def test_what_the_parent_passes_on_late_is_not_a_second_signal_but_a_second_one_is() -> None:
    passed_on = 7
    urgent = UrgentSignals(lambda: passed_on)
    assert urgent.count(signal.SIGINT, 1.0) == 1
    passed_on += 1
    assert urgent.count(signal.SIGINT, 9.0) == 1
    assert urgent.count(signal.SIGINT, 9.1) == 2
    passed_on += 1
    assert urgent.count(signal.SIGINT, 20.0) == 2
    passed_on += 1
    assert urgent.count(signal.SIGTERM, 30.0) == 3


def test_signals_of_two_ways_are_two_if_a_minute_lies_between_them() -> None:
    passed_on = 0
    urgent = UrgentSignals(lambda: passed_on)
    assert urgent.count(signal.SIGINT, 1.0) == 1
    passed_on += 1
    assert urgent.count(signal.SIGTERM, 61.0) == 2
