"""The status on a terminal and in a log, never more often than people can read it."""

import io
import re
import subprocess
import sys
import threading
from itertools import pairwise

import pytest
from rich.console import Console

from stream_server.server.checkpoint.agreement import SaveCounts
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.study.display import (
    MAX_PLAIN_INTERVAL_S,
    PLAIN_INTERVAL_S,
    Display,
    bottleneck,
    line,
    panel,
    shares,
)
from stream_server.server.study.status import INTERVAL_S, RATE_WINDOW_S, STEADY_S, Mark, Rates, Snapshot
from tests.support.emulator import lines_shown
from tests.support.snapshots import NOTHING, board_of, changed
from tests.support.timing import Clock

STATUS = changed(
    Snapshot(training=NOTHING),
    simulations={"waiting": 3, "running": 2, "finished": 4, "given_up": 1, "invalid": 1, "stopped": 0},
    received=1234,
    expected=5000,
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


def test_a_board_logs_what_is_received_once_it_knows_a_rate() -> None:
    clock, metrics = Clock(), Metrics(SoloRanks())
    received = [500]
    board, _ = board_of(received=received, clock=clock)
    metrics.gauges.append(board)
    for now, num in ((1.0, 500), (3.0, 560)):
        clock.now, received[0] = now, num
        board.on_round(None)
        metrics.write(int(now), now)
    assert metrics.latest == {"speed/received_per_s": 30.0, "simulations/running": 2.0}


def test_a_board_shows_all_the_same_snapshot_now_and_then() -> None:
    clock = Clock()
    first: list[Snapshot] = []
    second: list[Snapshot] = []
    board, _ = board_of(first.append, second.append, clock=clock)
    for _ in range(40):
        clock.now += INTERVAL_S / 4
        board.on_round(None)
    assert len(first) == 10
    assert all(one is other for one, other in zip(first, second, strict=True))
    shown = first[-1]
    assert (shown.simulations, shown.received, shown.expected) == ({"running": 2, "waiting": 1}, 12, 30)
    assert (shown.watermark, shown.restarts, shown.warnings) == (7, 1, ["old", "new"])


def test_what_was_trained_was_received_though_other_ranks_tell_it_later() -> None:
    shown: list[Snapshot] = []
    board, study = board_of(shown.append, received=[0])
    study.progress.samples = 8
    board.on_round(None)
    assert shown[0].received == 8


def test_a_loss_that_is_not_finite_is_shown_on_the_screen_and_no_operator_is_sent_one() -> None:
    shown: list[Snapshot] = []
    board, study = board_of(shown.append)
    study.metrics.latest["train/loss"] = float("nan")
    board.on_round(None)
    assert shown[0].training.loss is None
    assert "| loss nan" in line(shown[0])


def test_the_time_of_a_checkpoint_is_that_at_which_it_was_seen() -> None:
    clock, wall, saves = Clock(), Clock(1000.0), SaveCounts()
    shown: list[Snapshot] = []
    board, _ = board_of(shown.append, saves=saves, clock=clock, wall_clock=wall)
    for committed in (0, 1, 1):
        saves.committed = committed
        board.on_round(None)
        clock.now += 1.0
        wall.now += 1.0
    assert [it.checkpoint_at_s for it in shown] == [None, 1001.0, 1001.0]


def test_the_board_has_the_last_status_of_a_training_that_was_too_short_for_another_one() -> None:
    console = terminal()
    with Display(console) as display:
        board, study = board_of(display.show, clock=Clock())
        board.on_round(None)
        study.metrics.latest["train/loss"] = 0.1235
        board.on_round(None)
        assert "loss" not in text(console)
        board.on_train_end(None)
        assert re.search(r"loss .*0\.1235", text(console))


def test_a_board_tells_rates_and_the_time_that_is_left() -> None:
    clock = Clock()
    shown: list[Snapshot] = []
    board, study = board_of(shown.append, clock=clock)
    for second in range(61):
        clock.now = float(second)
        vars(study.progress).update(batches=3 * second, draws=6 * second, samples=2 * second, fraction=second / 240)
        study.phases.seconds["wait_for_data"] = 0.5 * second
        board.on_round(None)
    first, last = shown[0], shown[-1]
    assert (first.training.left_s, first.waiting, first.trained_per_s) == (None, None, 0.0)
    assert (last.training.batches_per_s, last.training.draws_per_s, last.trained_per_s) == (3.0, 6.0, 2.0)
    assert last.waiting == 0.5
    assert last.training.left_s == pytest.approx(180.0)


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates()
    for second in range(1000):
        per_s = rates.note(Mark(now=float(second), received=90 * max(0, second - 900)))
    assert per_s.received == 90.0
    assert rates.note(Mark(now=1000.0 + RATE_WINDOW_S, received=90 * 99)).received < 90.0


def test_without_a_terminal_the_status_is_one_plain_line() -> None:
    console = plain()
    with Display(console) as display:
        display.show(STATUS)
    assert text(console) == (
        "simulations 3 waiting, 2 running, 4 done, 2 failed | samples 1,234/5,000, 0.0/s | batches 40, 0.0/s | "
        "buffer 50/200 (25%) | loss 0.1235\n"
    )


def test_a_buffer_that_holds_the_samples_of_further_ranks_since_a_restart_says_so() -> None:
    over = changed(STATUS, population=418, capacity=300)
    assert "| buffer 418/300 (full; 118 more from before the restart) |" in line(over)


def test_plain_lines_come_at_growing_intervals() -> None:
    console = plain()
    times: list[float] = []
    with Display(console) as display:
        for second in range(4 * 3600):
            num = len(text(console).splitlines())
            display.show(changed(STATUS, at_s=float(second)))
            times += [second] * (len(text(console).splitlines()) - num)
    intervals = [later - earlier for earlier, later in pairwise(times)]
    assert intervals[0] == PLAIN_INTERVAL_S
    assert intervals == sorted(intervals)
    assert intervals[-1] == MAX_PLAIN_INTERVAL_S
    assert len(times) < 50


def test_trouble_makes_a_plain_line_come_sooner() -> None:
    console = plain()
    with Display(console) as display:
        for second in range(200):
            awaited = "somebody to attach" if second >= 150 else ""
            display.show(changed(STATUS, at_s=float(second), awaited=awaited))
            if awaited and "WAITS FOR somebody" in text(console):
                break
    assert second <= 150 + PLAIN_INTERVAL_S


def test_troubles_that_come_and_go_make_no_more_lines_than_people_can_read() -> None:
    console = plain()
    with Display(console) as display:
        for quarter in range(400):
            display.show(changed(STATUS, at_s=quarter / 4, awaited="a client" if quarter % 2 else ""))
    assert len(text(console).splitlines()) <= 100 / PLAIN_INTERVAL_S


def test_on_a_terminal_the_status_is_live_without_a_thread() -> None:
    console = terminal()
    before = threading.enumerate()
    with Display(console) as display:
        display.show(STATUS)
        assert threading.enumerate() == before
    shown = text(console)
    for expected in ("3 waiting, 2 running, 4 done, 2 failed", "1,234/5,000", "50/200", "0.1235", "step 75%", "━"):
        assert expected in shown


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    with Display(console) as display:
        display.show(STATUS)
    assert text(console).startswith("simulations 3 waiting")


def test_leaving_the_display_gives_the_screen_back() -> None:
    stderr = sys.stderr
    with Display(terminal()):
        pass
    assert sys.stderr is stderr


def test_a_study_of_unknown_length_shows_what_came() -> None:
    assert "samples 7, 0.0/s |" in line(changed(STATUS, received=7, expected=None))


def test_a_run_of_known_length_shows_how_much_is_done_and_how_long_the_rest_takes() -> None:
    known = changed(STATUS, fraction=0.25, left_s=180.0)
    assert "25% done, about 0:03:00 left" in line(known)
    assert "25% done, about 0:03:00 left" in "\n".join(lines_of(known, 100))
    assert "left" not in line(changed(known, awaited="somebody"))


def test_a_run_that_is_done_has_no_time_left_to_tell() -> None:
    assert ", 100% done |" in line(changed(STATUS, fraction=1.0, left_s=0.2))


def test_phases_below_one_percent_are_left_out() -> None:
    assert shares({"step": 98.9, "round": 0.6, "wait_for_data": 0.5}, 4) == "step 99%"
    assert shares({"step": 0.0}) == ""


def test_a_display_that_was_entered_imports_nothing_more() -> None:
    code = """
import io, sys
from rich.console import Console
from tests.server.study.test_display import STATUS, changed
from stream_server.server.study.display import Display
for is_terminal in (False, True):
    with Display(Console(file=io.StringIO(), force_terminal=is_terminal), name="h\u00e9at \u2248") as display:
        before = set(sys.modules)
        display.show(changed(STATUS, fraction=0.5))
        print(*set(sys.modules) - before)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def lines_of(snapshot: Snapshot, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(panel("heat", snapshot, width))
    return [shown.rstrip() for shown in capture.get().splitlines()]


@pytest.mark.parametrize("then", ["ends", "trains", "warns"])
def test_what_others_print_after_a_signal_stands_between_a_whole_panel_and_lines(then: str) -> None:
    """mpirun and launcher write to the same terminal, where the panel is drawn again a quarter of a second later."""
    console, now, leaving = terminal(), 0.0, [False]
    others = ["^C[mpiexec@node] Sending Ctrl-C to processes as requested", f"stream-launcher: {'word ' * 30}"]
    with Display(console, name="heat", is_leaving=lambda: leaving[0]) as display:
        for _ in range(3):
            display.show(changed(STATUS, at_s=now))
            now += INTERVAL_S
        console.file.write("".join(f"{line}\n" for line in others))
        leaving[0] = True
        for _ in range(2 if then == "trains" else 0):
            display.show(changed(STATUS, at_s=now))
            now += PLAIN_INTERVAL_S
        if then == "warns":
            display.make_way()
            console.print("WARNING", soft_wrap=True)
    console.print("heat: saved", soft_wrap=True)
    # With colours, a bar shows its rest, too.
    shown, drawn = (
        re.sub("[━╸╺ ]", "", "\n".join(lines))
        for lines in (lines_shown(text(console), columns=100), lines_of(STATUS, 100))
    )
    last = {"ends": "", "trains": line(STATUS), "warns": "WARNING"}[then]
    said = "".join(others) + last + "heat:saved"
    assert shown.startswith(f"{drawn}\n^C")
    assert shown.removeprefix(drawn).replace("\n", "") == said.replace(" ", "")


@pytest.mark.parametrize("width", [30, 50, 60, 80, 99])
def test_a_narrow_panel_keeps_its_names_and_loses_no_word(width: int) -> None:
    many = {"waiting": 1506, "queued": 130, "running": 2, "finished": 11_370, "given_up": 3}
    shown = lines_of(changed(STATUS, simulations=many, fraction=0.25, left_s=360.0, validation_loss=0.2), width)
    assert max(map(len, shown)) <= width
    assert {"simulations", "samples", "batches", "buffer", "loss", "time"} <= {line[1:12].strip() for line in shown}
    words = " ".join(re.sub(r"[━╸╺]", "", " ".join(shown)).split())
    assert "1,506 waiting, 130 queued, 2 running, 11,370 done, 3 failed" in words
    assert "25% done, about 0:06:00 left" in words


def test_the_panel_has_bars_losses_rates_and_a_sentence() -> None:
    snapshot = changed(
        STATUS,
        fraction=0.25,
        left_s=360.0,
        validation_loss=0.2,
        restarts=2,
        warnings=["old", "the disk\x1b[2J is full"],
        batches_per_s=3.2,
        received_per_s=90.0,
        trained_per_s=100.0,
        waiting=0.75,
    )
    assert lines_of(snapshot, 100) == [
        "heat",
        " simulations  ━━━━━━━━╸         3 waiting, 2 running, 4 done, 2 failed",
        " samples      ━━━╸              1,234/5,000, 90.0/s",
        " batches      ━━━━              40, 3.2/s, 25% done, about 0:06:00 left",
        " buffer       ━━━━              50/200 (25%)",
        " loss         0.1235",
        " validation   0.2",
        " bottleneck   training waits for data: 2 simulations at a time bring 100 new samples/s, training",
        "              could take 400",
        " time         step 75%, wait for data 25%",
        " restarts     2 of the server",
        " warnings     2, the last: the disk\\x1b[2J is full",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_of_the_panel_is_wider_than_the_terminal(width: int) -> None:
    snapshot = changed(STATUS, fraction=0.25, awaited="a client " * 30, waiting=0.5, trained_per_s=1.0)
    assert max(map(len, lines_of(snapshot, width))) <= width


def test_a_line_has_no_control_characters() -> None:
    assert "\x1b" not in line(changed(STATUS, awaited="\x1b[31mred"))


def test_the_bottleneck_is_told_in_words() -> None:
    # Time steps of held-out simulations come too, and each sample is drawn several times: neither is a measure.
    waits = changed(STATUS, received_per_s=1000.0, draws_per_s=2000.0, trained_per_s=100.0, waiting=0.75)
    assert bottleneck(waits) == (
        "training waits for data: 2 simulations at a time bring 100 new samples/s, training could take 400"
    )
    one = changed(waits, simulations={"running": 1})
    assert bottleneck(one).startswith("training waits for data: 1 simulation at a time brings 100")
    assert bottleneck(changed(one, trained_per_s=0.125)).endswith("brings 0.12 new samples/s, training could take 0.5")
    busy = changed(STATUS, received_per_s=90.0, draws_per_s=1800.0, trained_per_s=90.0, waiting=0.01)
    assert bottleneck(changed(busy, population=199, room=1)) == (
        "simulations wait for training: the buffer is full, and training takes 90 new samples/s"
    )
    assert bottleneck(busy) == bottleneck(STATUS) == ""
    assert bottleneck(changed(busy, population=200)) == ""
    assert bottleneck(changed(waits, simulations={"finished": 9})) == ""


def test_a_study_that_writes_files_is_told_of_no_training() -> None:
    writing = changed(
        STATUS,
        writes_files=True,
        fraction=0.25,
        batches=7,
        loss=None,
        received_per_s=90.0,
        trained_per_s=100.0,
        waiting=0.75,
    )
    assert "batches" not in line(writing) + "".join(lines_of(writing, 100))
    assert "training" not in line(writing) + "".join(lines_of(writing, 100))
    assert "25% done" in lines_of(writing, 100)[2]


def test_until_training_begins_it_is_told_what_it_waits_for() -> None:
    filling = changed(STATUS, batches=0, watermark=60)
    told = "training begins when each rank has 60 samples (buffer.watermark)"
    assert bottleneck(filling) == told
    assert bottleneck(changed(filling, population=0)) == f"{told}; the held-out simulations come first"
    assert bottleneck(changed(filling, population=60)) == ""
    assert bottleneck(changed(filling, received=0, population=0)) == ""
    assert bottleneck(changed(filling, watermark=1, population=0)) == ""


def test_what_waits_in_a_queue_is_told_apart_from_what_runs() -> None:
    queued = changed(STATUS, simulations={"waiting": 3, "queued": 2, "running": 0, "finished": 4})
    assert "simulations 3 waiting, 2 queued, 0 running, 4 done, 0 failed" in line(queued)
    assert "queued" not in line(STATUS)
    told = bottleneck(changed(queued, waiting=1.0, trained_per_s=1.0))
    assert told == "training waits for data: no simulation runs, 2 in the queue"


def test_between_two_simulations_of_a_worker_the_others_in_its_list_do_not_wait_in_a_queue() -> None:
    between = {"waiting": 300, "queued": 130, "running": 0, "finished": 1570}
    told = bottleneck(changed(STATUS, simulations=between, waiting=0.5, trained_per_s=200.0, received_per_s=200.0))
    assert told == "training waits for data: simulations bring 200 new samples/s, training could take 400"


def test_the_time_left_is_told_once_some_seconds_have_been_seen() -> None:
    clock = Clock()
    shown: list[Snapshot] = []
    board, study = board_of(shown.append, clock=clock)
    for now, fraction in ((0.0, 0.0), (STEADY_S - 1.0, 0.1), (STEADY_S, 0.2)):
        clock.now, study.progress.fraction = now, fraction
        board.on_round(None)
    assert [it.training.left_s for it in shown] == [None, None, 40.0]
