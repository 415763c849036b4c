"""What the main thread makes of what has happened."""

from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import TooManyFailures
from stream_server.launcher import link
from stream_server.server import events
from stream_server.server.training.stop import StopReason, StopRequests
from stream_server.server.watch import Watch


class Heard:
    """Callbacks that write down what they are told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_simulation_finished(self, simulation: int) -> None:
        self.events.append(simulation)

    def on_reception_end(self) -> None:
        self.events.append("end")


def look(*happened: events.Event) -> tuple[StopRequests, list[Any]]:
    stops, heard = StopRequests(), Heard()
    source: Any = SimpleNamespace(look=lambda: list(happened))
    callbacks: Any = heard
    Watch(source, callbacks, stops=stops).on_round(None)
    return stops, heard.events


def test_a_launcher_that_asks_the_server_to_leave_has_the_study_saved() -> None:
    stops, _ = look(events.FromLauncher(message=link.Leave(reason="the job's time is nearly over")))
    assert (stops.pending, stops.text) == (StopReason.SAVED, "the job's time is nearly over")


def test_a_study_whose_simulations_cannot_be_made_to_run_ends() -> None:
    with pytest.raises(TooManyFailures, match="3 of 3 failed"):
        look(events.StudyFailed(text="3 of 3 failed"))


def test_callbacks_are_told_in_order() -> None:
    _, told = look(
        events.SimulationFinished(simulation=4), events.SimulationFinished(simulation=1), events.ReceptionEnded()
    )
    assert told == [4, 1, "end"]


def test_other_words_of_the_launcher_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failed = link.Failed(simulation=3, attempt=1, reason="exit code 1", log="output.log")
    stops, told = look(events.FromLauncher(message=failed), events.FromLauncher(message=link.Ready()))
    assert (stops.pending, told) == (None, [])
    assert "simulation 3, attempt 1 failed: exit code 1; its log: output.log" in caplog.text


def test_why_no_simulation_is_started_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    look(events.FromLauncher(message=link.HeldBack(text="the disk refuses")))
    assert "the disk refuses" in caplog.text
