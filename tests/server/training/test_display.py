"""The status on a terminal and in a log, never more often than people can read it."""

import io
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from stream_server.server.training.monitoring.display import (
    LIVE_INTERVAL_S,
    MAX_PLAIN_INTERVAL_S,
    PLAIN_INTERVAL_S,
    Display,
    DisplayedStatus,
    ProgressDisplay,
    bottleneck,
    line,
    panel,
    shares,
    sparkline,
)
from stream_server.server.training.monitoring.trends import Pace, Trend, Trends
from tests.support.emulator import lines_shown
from tests.support.timing import Clock

STATUS = DisplayedStatus(
    simulations={"waiting": 3, "running": 2, "finished": 4, "given_up": 1, "invalid": 1, "stopped": 0},
    samples=1234,
    expected_samples=5000,
    population=50,
    room=150,
    capacity=200,
    batches=40,
    loss=0.123456,
    phases_s={"step": 3.0, "wait_for_data": 1.0},
)


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
        "batches 40 (0.0/s) | loss 0.1235\n"
    )


def test_a_buffer_that_holds_the_samples_of_further_ranks_since_a_restart_says_so() -> None:
    over = replace(STATUS, population=418, capacity=300)
    assert "| buffer 418/300 (full; 118 more from before the restart) |" in line(over, Trend())


def test_plain_lines_come_at_growing_intervals() -> None:
    console, clock = plain(), Clock()
    times: list[float] = []
    with Display(console, clock) as display:
        for _ in range(4 * 3600):
            num = len(text(console).splitlines())
            display.update(lambda: STATUS)
            times += [clock.now] * (len(text(console).splitlines()) - num)
            clock.now += 1.0
    intervals = [later - earlier for earlier, later in pairwise(times)]
    assert intervals[0] == PLAIN_INTERVAL_S
    assert intervals == sorted(intervals)
    assert intervals[-1] == MAX_PLAIN_INTERVAL_S
    assert len(times) < 50


def test_trouble_makes_a_plain_line_come_sooner() -> None:
    console, clock = plain(), Clock()
    with Display(console, clock) as display:
        for second in range(200):
            awaited = "somebody to attach" if second >= 150 else ""
            display.update(lambda awaited=awaited: replace(STATUS, awaited=awaited))  # type: ignore[misc]
            if awaited and "WAITS FOR somebody" in text(console):
                break
            clock.now += 1.0
    assert second <= 150 + PLAIN_INTERVAL_S


def test_the_status_is_asked_for_only_when_it_is_shown() -> None:
    asked = []

    def status() -> DisplayedStatus:
        asked.append(True)
        return STATUS

    clock = Clock()
    with Display(terminal(), clock) as display:
        for _ in range(40):
            clock.now += LIVE_INTERVAL_S / 4
            display.update(status)
    assert len(asked) == 10


def test_the_panel_has_the_last_status_of_a_training_that_was_too_short_for_another_one() -> None:
    console, begun = terminal(), replace(STATUS, batches=0, loss=None)
    statuses = iter([begun, STATUS])
    with Display(console, Clock()) as display:
        progress = ProgressDisplay(display, lambda: next(statuses))
        progress.on_round(None)
        progress.on_round(None)
        assert "loss" not in text(console)
        progress.on_train_end(None)
        assert re.search(r"loss .*0\.1235", text(console))


def test_on_a_terminal_the_status_is_live_without_a_thread() -> None:
    console = terminal()
    before = threading.enumerate()
    with Display(console, Clock()) as display:
        display.update(lambda: STATUS)
        assert threading.enumerate() == before
    shown = text(console)
    for expected in ("3 waiting, 2 running, 4 done, 2 failed", "1,234/5,000", "50/200", "0.1235", "step 75%", "━"):
        assert expected in shown


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    with Display(console, Clock()) as display:
        display.update(lambda: STATUS)
    assert text(console).startswith("simulations 3 waiting")


def test_leaving_the_display_gives_the_screen_back() -> None:
    stderr = sys.stderr
    with Display(terminal(), Clock()):
        pass
    assert sys.stderr is stderr


def test_the_rate_is_that_of_the_last_seconds() -> None:
    console, clock = plain(), Clock()
    with Display(console, clock) as display:
        for batches in (0, 10, 1010, 2010, 3010):
            display.update(lambda batches=batches: DisplayedStatus(simulations={}, samples=0, batches=batches))  # type: ignore[misc]
            clock.now += PLAIN_INTERVAL_S
    assert "(200.0/s)" in text(console).splitlines()[-1]


def test_a_study_of_unknown_length_shows_what_came() -> None:
    console = plain()
    with Display(console, Clock()) as display:
        display.update(lambda: DisplayedStatus(simulations={}, samples=7))
    assert "samples 7 |" in text(console)


def test_a_run_of_known_length_shows_how_much_is_done_and_how_long_the_rest_takes() -> None:
    console, live = plain(), terminal()
    for shown in (console, live):
        clock = Clock()
        with Display(shown, clock) as display:
            for second in range(61):
                done = DisplayedStatus(simulations={}, samples=7, fraction=second / 240, batches=second)
                display.update(lambda done=done: done)  # type: ignore[misc]
                clock.now += 1.0
    assert "25% done, about 0:03:00 left" in text(live)
    assert "% done, about 0:03" in text(console)


def test_a_run_that_is_done_has_no_time_left_to_tell() -> None:
    assert " | 100% done" in line(replace(STATUS, fraction=1.0), Trend(left_s=0.2))
    assert "left" not in line(replace(STATUS, fraction=1.0), Trend(left_s=0.2))


def test_phases_below_one_percent_are_left_out() -> None:
    assert shares({"step": 98.9, "round": 0.6, "wait_for_data": 0.5}, 4) == "step 99%"


def test_nothing_is_said_of_the_rest_of_a_run_that_has_not_begun() -> None:
    console = plain()
    with Display(console, Clock()) as display:
        display.update(lambda: DisplayedStatus(simulations={}, samples=0, fraction=0.0))
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
from stream_server.server.training.monitoring.display import Display, DisplayedStatus
for is_terminal in (False, True):
    with Display(Console(file=io.StringIO(), force_terminal=is_terminal), name="h\u00e9at \u2248") as display:
        before = set(sys.modules)
        display.update(lambda: DisplayedStatus(simulations={}, samples=0, loss=0.1, phases_s={"step": 1.0}))
        print(*set(sys.modules) - before)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def lines_of(status: DisplayedStatus, trend: Trend, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(panel("heat", status, trend, width))
    return [shown.rstrip() for shown in capture.get().splitlines()]


@pytest.mark.parametrize("then", ["ends", "trains", "warns"])
def test_what_others_print_after_a_signal_stands_between_a_whole_panel_and_lines(then: str) -> None:
    """mpirun and launcher write to the same terminal, where the panel is drawn again a quarter of a second later."""
    console, clock, leaving = terminal(), Clock(), [False]
    others = ["^C[mpiexec@node] Sending Ctrl-C to processes as requested", f"stream-launcher: {'word ' * 30}"]
    with Display(console, clock, name="heat", is_leaving=lambda: leaving[0]) as display:
        for _ in range(3):
            display.update(lambda: STATUS)
            clock.now += LIVE_INTERVAL_S
        console.file.write("".join(f"{line}\n" for line in others))
        leaving[0] = True
        for _ in range(2 if then == "trains" else 0):
            display.update(lambda: STATUS)
            clock.now += PLAIN_INTERVAL_S
        if then == "warns":
            display.make_way()
            console.print("WARNING", soft_wrap=True)
    console.print("heat: saved", soft_wrap=True)
    # With colours, a bar shows its rest, too; a display knows the course of the loss.
    shown, drawn = (
        re.sub("[━╸╺▁-█ ]", "", "\n".join(lines))
        for lines in (lines_shown(text(console), columns=100), lines_of(STATUS, Trend(), 100))
    )
    last = {"ends": "", "trains": line(STATUS, Trend()), "warns": "WARNING"}[then]
    said = "".join(others) + last + "heat:saved"
    assert shown.startswith(f"{drawn}\n^C")
    assert shown.removeprefix(drawn).replace("\n", "") == said.replace(" ", "")


@pytest.mark.parametrize("width", [30, 50, 60, 80, 99])
def test_a_narrow_panel_keeps_its_names_and_loses_no_word(width: int) -> None:
    many = {"waiting": 1506, "queued": 130, "running": 2, "finished": 11_370, "given_up": 3}
    status = replace(STATUS, simulations=many, fraction=0.25, validation_loss=0.2)
    shown = lines_of(status, Trend(left_s=360.0, losses=[2.0, 1.0]), width)
    assert max(map(len, shown)) <= width
    assert {"simulations", "samples", "batches", "buffer", "loss", "time"} <= {line[1:12].strip() for line in shown}
    words = re.sub(r"[━╸╺▁-█]", "", " ".join(shown)).split()
    assert "1,506 waiting, 130 queued, 2 running, 11,370 done, 3 failed" in " ".join(words[2:])
    assert "25% done, about 0:06:00 left" in " ".join(words)


def test_the_panel_has_bars_losses_rates_and_a_sentence() -> None:
    status = replace(
        STATUS, fraction=0.25, validation_loss=0.2, restarts=2, warnings=["old", "the disk\x1b[2J is full"]
    )
    trend = Trend(
        batches_per_s=3.2,
        samples_per_s=90.0,
        trained_per_s=100.0,
        waiting=0.75,
        left_s=360.0,
        losses=[4.0, 3.0, 2.0, 1.0],
    )
    assert lines_of(status, trend, 100) == [
        "heat",
        " simulations  ━━━━━━━━━━━━━             3 waiting, 2 running, 4 done, 2 failed",
        " samples      ━━━━━╸                    1,234/5,000, 90.0/s",
        " batches      ━━━━━━                    40, 3.2/s, 25% done, about 0:06:00 left",
        " buffer       ━━━━━━                    50/200 (25%)",
        " loss         █▆▃▁                      0.1235, validation 0.2",
        " time         step 75%, wait for data 25%",
        " bottleneck   training waits for data: 2 simulations at a time bring 100 new samples/s, training",
        "              could take 400",
        " restarts     2 of the server",
        " warnings     2, the last: the disk\\x1b[2J is full",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_of_the_panel_is_wider_than_the_terminal(width: int) -> None:
    trend = Trend(waiting=0.5, trained_per_s=1.0, losses=[1.0] * 300)
    status = replace(STATUS, fraction=0.25, awaited="a client " * 30)
    assert max(map(len, lines_of(status, trend, width))) <= width


def test_a_line_has_no_control_characters() -> None:
    assert "\x1b" not in line(replace(STATUS, awaited="\x1b[31mred"), Trend())


def test_the_bottleneck_is_told_in_words() -> None:
    # Time steps of held-out simulations come too, and each sample is drawn several times: neither is a measure.
    waits = Trend(samples_per_s=1000.0, draws_per_s=2000.0, trained_per_s=100.0, waiting=0.75)
    assert bottleneck(STATUS, waits) == (
        "training waits for data: 2 simulations at a time bring 100 new samples/s, training could take 400"
    )
    one = replace(STATUS, simulations={"running": 1})
    assert bottleneck(one, waits).startswith("training waits for data: 1 simulation at a time brings 100")
    slow = bottleneck(one, replace(waits, trained_per_s=0.125))
    assert slow.endswith("brings 0.12 new samples/s, training could take 0.5")
    full = replace(STATUS, population=199, room=1)
    busy = Trend(samples_per_s=90.0, draws_per_s=1800.0, trained_per_s=90.0, waiting=0.01)
    assert bottleneck(full, busy) == (
        "simulations wait for training: the buffer is full, and training takes 90 new samples/s"
    )
    assert bottleneck(STATUS, busy) == bottleneck(STATUS, Trend()) == ""
    assert bottleneck(replace(STATUS, population=200), busy) == ""
    assert bottleneck(replace(STATUS, simulations={"finished": 9}), waits) == ""


def test_a_study_that_writes_files_is_told_of_no_training() -> None:
    writing = replace(STATUS, writes_files=True, fraction=0.25, batches=7, loss=None)
    trend = Trend(samples_per_s=90.0, trained_per_s=100.0, waiting=0.75)
    assert "batches" not in line(writing, trend) + "".join(lines_of(writing, trend, 100))
    assert "training" not in line(writing, trend) + "".join(lines_of(writing, trend, 100))
    assert "25% done" in lines_of(writing, trend, 100)[2]


def test_until_training_begins_it_is_told_what_it_waits_for() -> None:
    filling = replace(STATUS, batches=0, watermark=60)
    told = "training begins when each rank has 60 samples (buffer.watermark)"
    assert bottleneck(filling, Trend()) == told
    assert bottleneck(replace(filling, population=0), Trend()) == f"{told}; the held-out simulations come first"
    assert bottleneck(replace(filling, population=60), Trend()) == ""
    assert bottleneck(replace(filling, samples=0, population=0), Trend()) == ""
    assert bottleneck(replace(filling, watermark=1, population=0), Trend()) == ""


def test_rates_are_those_of_the_last_seconds() -> None:
    trends = Trends()
    for second in range(40):
        wait_s = 0.5 * second
        status = replace(STATUS, samples=90 * second, trained=100 * second, phases_s={"wait_for_data": wait_s})
        trend = trends.note(status.mark(float(second)), fraction=status.fraction)
    assert (trend.samples_per_s, trend.trained_per_s, trend.waiting) == (90.0, 100.0, 0.5)


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == sparkline([math.nan]) == ""
    assert sparkline([3.0, math.inf, 1.0]) == "█▁"
    assert len(sparkline(list(map(float, range(1000))), 24)) == 24


def left_after(course: Iterable[tuple[float, float]]) -> float | None:
    """The time that is left after these moments and fractions, with ten batches in each."""
    pace = Pace()
    for num, (now, fraction) in enumerate(course):
        pace.note(now, fraction, 10 * num)
    return pace.left_s


def test_the_time_that_is_left_is_that_of_the_pace() -> None:
    assert left_after((float(second), second / 100) for second in range(51)) == pytest.approx(50.0)


def test_neither_an_earlier_start_nor_the_wait_for_data_counts() -> None:
    """It began at 40 %, and waited for an hour."""
    waited = [(float(second), 0.4) for second in range(3600)]
    assert left_after([*waited, *((3600.0 + second, 0.4 + second / 100) for second in range(1, 31))]) == pytest.approx(
        30.0
    )


@pytest.mark.parametrize(
    "course",
    [
        [],
        [(0.0, 0.0)],
        [(float(second), 0.3) for second in range(100)],
        [(0.1 * num, 0.01 * num) for num in range(50)],
        # Fast, and then slow.
        [(float(second), min(second, 30) / 100 + max(0, second - 30) / 1000) for second in range(60)],
        # Held for ten minutes.
        [(float(second + 600 * (second > 20)), second / 100) for second in range(40)],
    ],
    ids=["nothing", "one moment", "standing still", "too short", "slower", "held"],
)
def test_no_time_is_told_that_cannot_be_known(course: list[tuple[float, float]]) -> None:
    assert left_after(course) is None


def test_a_long_course_is_thinned_and_still_right() -> None:
    assert left_after((float(second), second / 10000) for second in range(5001)) == pytest.approx(5000.0)


def test_what_waits_in_a_queue_is_told_apart_from_what_runs() -> None:
    queued = replace(STATUS, simulations={"waiting": 3, "queued": 2, "running": 0, "finished": 4})
    assert "simulations 3 waiting, 2 queued, 0 running, 4 done, 0 failed" in line(queued, Trend())
    assert "queued" not in line(STATUS, Trend())
    told = bottleneck(queued, Trend(waiting=1.0, trained_per_s=1.0))
    assert told == "training waits for data: no simulation runs, 2 in the queue"


def test_between_two_simulations_of_a_worker_the_others_in_its_list_do_not_wait_in_a_queue() -> None:
    between = replace(STATUS, simulations={"waiting": 300, "queued": 130, "running": 0, "finished": 1570})
    told = bottleneck(between, Trend(waiting=0.5, trained_per_s=200.0, samples_per_s=200.0))
    assert told == "training waits for data: simulations bring 200 new samples/s, training could take 400"


def test_a_loss_that_falls_by_orders_of_magnitude_is_shown_by_its_logarithm() -> None:
    assert sparkline([1000.0, 100.0, 10.0, 1.0]) == "█▆▃▁"
    assert sparkline([1000.0, 100.0, 10.0, -1.0]) == "█▂▁▁"
