"""The status on a terminal and in a log, never more often than people can read it."""

import io
import subprocess
import sys
import threading

from rich.console import Console

from stream_server.server.training.display import LIVE_INTERVAL_S, PLAIN_INTERVAL_S, Display, ProgressDisplay, Status

STATUS = Status(
    simulations={"waiting": 3, "running": 2, "finished": 4, "given_up": 1, "invalid": 1, "stopped": 0},
    samples=1234,
    expected_samples=5000,
    population=50,
    capacity=200,
    batches=40,
    loss=0.123456,
    phases_s={"step": 3.0, "wait_for_data": 1.0},
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> Console:
    return Console(file=io.StringIO(), width=200)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_the_status_is_one_plain_line() -> None:
    console = plain()
    with Display(console, Clock()) as display:
        display.update(lambda: STATUS)
    assert text(console) == (
        "simulations 3 waiting, 2 running, 4 done, 2 failed | samples 1,234/5,000 | buffer 50/200 (25%) | "
        "batches 40 (0.0/s) | loss 0.1235 | step 75%, wait for data 25%\n"
    )


def test_plain_lines_come_at_most_every_five_seconds() -> None:
    console, clock = plain(), Clock()
    with Display(console, clock) as display:
        for _ in range(100):
            clock.now += PLAIN_INTERVAL_S / 10
            display.update(lambda: STATUS)
    assert len(text(console).splitlines()) == 10


def test_the_status_is_asked_for_only_when_it_is_shown() -> None:
    asked = []

    def status() -> Status:
        asked.append(True)
        return STATUS

    clock = Clock()
    with Display(terminal(), clock) as display:
        for _ in range(40):
            clock.now += LIVE_INTERVAL_S / 4
            display.update(status)
    assert len(asked) == 10


def test_on_a_terminal_the_status_is_live_without_a_thread() -> None:
    console = terminal()
    before = threading.enumerate()
    with Display(console, Clock()) as display:
        display.update(lambda: STATUS)
        assert threading.enumerate() == before
    shown = text(console)
    for expected in ("3 waiting, 2 running, 4 done, 2 failed", "1,234/5,000", "50/200", "0.1235", "step 75%"):
        assert expected in shown


def test_leaving_the_display_gives_the_screen_back() -> None:
    stderr = sys.stderr
    with Display(terminal(), Clock()):
        pass
    assert sys.stderr is stderr


def test_the_rate_is_that_of_the_last_seconds() -> None:
    console, clock = plain(), Clock()
    with Display(console, clock) as display:
        for batches in (0, 10, 1010, 2010, 3010):
            display.update(lambda batches=batches: Status(simulations={}, samples=0, batches=batches))  # type: ignore[misc]
            clock.now += PLAIN_INTERVAL_S
    assert "(200.0/s)" in text(console).splitlines()[-1]


def test_a_study_of_unknown_length_shows_what_came() -> None:
    console = plain()
    with Display(console, Clock()) as display:
        display.update(lambda: Status(simulations={}, samples=7))
    assert "samples 7 |" in text(console)


def test_a_run_of_known_length_shows_how_much_is_done_and_how_long_the_rest_takes() -> None:
    status = Status(simulations={}, samples=7, fraction=0.25, elapsed_s=60.0)
    console, live = plain(), terminal()
    for shown in (console, live):
        with Display(shown, Clock()) as display:
            display.update(lambda: status)
    assert "25% done, about 0:03:00 left" in text(console)
    assert "25% done, about 0:03:00 left" in text(live)


def test_nothing_is_said_of_the_rest_of_a_run_that_has_not_begun() -> None:
    console = plain()
    with Display(console, Clock()) as display:
        display.update(lambda: Status(simulations={}, samples=0, fraction=0.0, elapsed_s=1.0))
    assert "0% done" in text(console)
    assert "left" not in text(console)


def test_the_display_is_kept_fresh_by_the_rounds_of_a_training() -> None:
    console, clock = plain(), Clock()
    with Display(console, clock) as display:
        callback = ProgressDisplay(display, lambda: STATUS)
        callback.on_round(None)
        clock.now += PLAIN_INTERVAL_S
        callback.on_round(None)
    assert len(text(console).splitlines()) == 2


def test_a_display_that_was_entered_imports_nothing_more() -> None:
    code = """
import io, sys
from rich.console import Console
from stream_server.server.training.display import Display, Status
for is_terminal in (False, True):
    with Display(Console(file=io.StringIO(), force_terminal=is_terminal), name="h\u00e9at \u2248") as display:
        before = set(sys.modules)
        display.update(lambda: Status(simulations={}, samples=0, loss=0.1, phases_s={"step": 1.0}))
        print(*set(sys.modules) - before)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
