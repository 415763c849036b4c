"""The effects of the events of a source of samples."""

from typing import Any

import pytest

from stream_server.errors import TooManyFailures
from stream_server.messages import launcher_link
from stream_server.server.intake import mailbox
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.study.composition import SourceEvents


class Heard:
    """Callbacks that write down what they are told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def tell(self, event: str, *arguments: Any) -> None:
        self.events.append((event, *arguments))


def look(*happened: mailbox.Event) -> tuple[StopRequests, list[Any]]:
    stops, heard = StopRequests(), Heard()
    callbacks: Any = heard
    SourceEvents(lambda: list(happened), callbacks, stops=stops).on_round(None)
    return stops, heard.events


def test_a_launcher_that_asks_the_server_to_leave_has_the_study_saved() -> None:
    stops, _ = look(mailbox.FromLauncher(message=launcher_link.Leave(reason="the job's time is nearly over")))
    assert (stops.pending, stops.text) == (StopReason.SAVED, "the job's time is nearly over")


def test_a_study_whose_simulations_cannot_be_made_to_run_ends() -> None:
    with pytest.raises(TooManyFailures, match="3 of 3 failed"):
        look(mailbox.SimulationsFailed(text="3 of 3 failed"))


def test_callbacks_are_told_in_order() -> None:
    _, told = look(
        mailbox.SimulationFinished(simulation=4), mailbox.SimulationFinished(simulation=1), mailbox.ReceptionEnded()
    )
    assert told == [("on_simulation_finished", 4), ("on_simulation_finished", 1), ("on_reception_end",)]


def test_other_words_of_the_launcher_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failed = launcher_link.Failed(simulation=3, attempt=1, reason="exit code 1", log="output.log")
    stops, told = look(mailbox.FromLauncher(message=failed), mailbox.FromLauncher(message=launcher_link.PlanAccepted()))
    assert (stops.pending, told) == (None, [])
    assert "simulation 3, attempt 1 failed: exit code 1; its log: output.log" in caplog.text


def test_why_no_simulation_is_started_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    look(mailbox.FromLauncher(message=launcher_link.HeldBack(text="the disk refuses")))
    assert "the disk refuses" in caplog.text


def test_what_people_should_know_of_a_simulation_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    look(mailbox.SimulationWarning(text="simulation 3 could not be withdrawn"))
    assert "simulation 3 could not be withdrawn" in caplog.text


def test_a_server_that_hears_no_launcher_says_so_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    look(mailbox.LauncherSilence(is_over=False), mailbox.LauncherSilence(is_over=True))
    silent, again = (it.getMessage() for it in caplog.records)
    assert silent.endswith("start it by the same command: it takes this server over")
    assert again == "stream-launcher answers again"


def test_an_operator_who_stops_the_study_has_it_saved() -> None:
    stops, _ = look(mailbox.StopAsked(reason="stopped by an operator"))
    assert (stops.pending, stops.text) == (StopReason.SAVED, "stopped by an operator")


def test_the_order_to_finish_is_told_once_although_the_launcher_confirms_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    look(mailbox.FinishAsked(reason="enough"), mailbox.FinishAsked(reason="enough"))
    assert capsys.readouterr().err == "enough\n"
    assert not caplog.records


def test_an_operator_who_lets_it_finish_stops_no_training_and_is_named_in_the_report() -> None:
    stops, _ = look(mailbox.FinishAsked(reason="enough"))
    assert (stops.pending, stops.text) == (None, "enough")
    stops.request(StopReason.MAX_BATCHES, "10 batches")
    stops.note("enough")
    assert stops.text == "10 batches"
