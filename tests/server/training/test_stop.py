"""What asks for a stop."""

import signal

import pytest

from stream_server.server.training.stop import StopReason, StopRequests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_for_a_stop_after_which_the_study_goes_on(number: signal.Signals) -> None:
    stops = StopRequests()
    with stops.on_signals():
        signal.raise_signal(number)
    assert stops.pending is StopReason.SAVED
    assert stops.text == f"stopped by {number.name}; run it again to go on"


def test_a_second_interrupt_ends_at_once() -> None:
    stops = StopRequests()
    with stops.on_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


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


def test_every_reason_has_a_word_for_the_account() -> None:
    assert [reason.untrained_reason for reason in StopReason] == [
        "saved",
        "early_stop",
        "max_batches",
        "max_s",
        "uneven",
    ]
