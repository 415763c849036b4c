"""How long a client waits for a server that says nothing."""

import pytest

from stream_server.client_api import hello
from stream_server.client_api.hello import SilenceTimer
from tests.support.timing import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hello, "time", clock)
    return clock


def listen(it: SilenceTimer, clock: Clock, *, took_s: float, most_s: float) -> None:
    clock.now += took_s
    it.listened(most_s)


def test_silence_ends_it(clock: Clock) -> None:
    it = SilenceTimer(timeout_s=3, repeat_s=0.5)
    for _ in range(6):
        assert not it.is_over
        listen(it, clock, took_s=0.5, most_s=0.5)
    assert it.is_over


def test_a_word_begins_the_silence_anew(clock: Clock) -> None:
    it = SilenceTimer(timeout_s=3, repeat_s=0.5)
    clock.now += 2
    it.heard()
    clock.now += 2
    assert not it.is_over


def test_time_in_which_the_process_was_stopped_is_no_silence(clock: Clock) -> None:
    it = SilenceTimer(timeout_s=3, repeat_s=0.5)
    listen(it, clock, took_s=600, most_s=0.5)
    assert not it.is_over
    assert it.may_repeat()
    for _ in range(5):
        listen(it, clock, took_s=0.5, most_s=0.5)
    assert it.is_over


def test_a_busy_machine_does_not_make_it_wait_longer(clock: Clock) -> None:
    it = SilenceTimer(timeout_s=3, repeat_s=0.5)
    for _ in range(3):
        listen(it, clock, took_s=1.0, most_s=0.5)
    assert it.is_over
