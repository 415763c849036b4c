"""Requests for a stop."""

import contextlib
import signal

import pytest

from stream_server.server.progress.stop import Interrupted, StopReason, StopRequests
from tests.support.timing import Clock


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP]
)
def test_a_signal_asks_for_a_stop_after_which_the_study_goes_on(number: signal.Signals) -> None:
    stops = StopRequests()
    # These tests may themselves run under nohup.
    before = signal.signal(number, signal.SIG_DFL)
    with stops.on_signals():
        signal.raise_signal(number)
    signal.signal(number, before)
    assert stops.pending is StopReason.SAVED
    assert stops.text == f"stopped by {number.name}"


def test_the_end_of_a_terminal_is_no_reason_to_stop_under_nohup() -> None:
    stops, before = StopRequests(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stops.on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stops.pending is None


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_at_once(first: signal.Signals, second: signal.Signals) -> None:
    stops, clock = StopRequests(), Clock()
    with stops.on_signals(clock):
        signal.raise_signal(first)
        clock.now = 1.0
        with pytest.raises(KeyboardInterrupt, match=f"a second {second.name}"):
            signal.raise_signal(second)


def test_a_signal_that_terminal_and_mpirun_both_pass_on_is_one() -> None:
    stops, clock = StopRequests(), Clock()
    with stops.on_signals(clock):
        signal.raise_signal(signal.SIGTERM)
        clock.now = 0.3
        signal.raise_signal(signal.SIGTERM)
    assert stops.pending is StopReason.SAVED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_ends_a_set_up_through_code_that_handles_exceptions(number: signal.Signals) -> None:
    stops = StopRequests()
    stops.in_set_up = True

    def users_code() -> None:
        with contextlib.suppress(Exception):
            signal.raise_signal(number)

    with stops.on_signals(), pytest.raises(Interrupted, match=f"stopped by {number.name} during the set-up"):
        users_code()


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests().on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_wish_is_kept() -> None:
    stops = StopRequests()
    stops.request(StopReason.MAX_S, "10 s")
    stops.request(StopReason.SAVED, "SIGTERM")
    assert (stops.pending, stops.text) == (StopReason.MAX_S, "10 s")


@pytest.mark.parametrize("agreed", [None, *StopReason])
def test_only_a_study_that_was_saved_and_that_nobody_stopped_is_handed_over(agreed: StopReason | None) -> None:
    followed, alone, ordered = StopRequests(is_followed=True), StopRequests(), StopRequests(is_followed=True)
    ordered.order("Ctrl-C")
    followed.agreed = alone.agreed = ordered.agreed = agreed
    assert followed.hands_over is (agreed is StopReason.SAVED)
    assert not alone.hands_over
    assert not ordered.hands_over


def test_every_reason_has_a_word_for_the_account() -> None:
    assert [reason.untrained_reason for reason in StopReason] == [
        "saved",
        "early_stop",
        "max_batches",
        "max_s",
        "uneven",
    ]
