"""The console of a whole study under mpirun: in a terminal, and in a file."""

import re
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import tests.support.in_terminal
from tests.support.emulator import lines_shown
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_study

WIDTH = 100
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
TERMINAL = [sys.executable, str(Path(tests.support.in_terminal.__file__)), str(WIDTH), "40"]
COMMANDS = ("  model ", "  page ", "  pictures ", "  curves ", "  logs ", "  report ")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A study on two ranks, whose console is a terminal of 100 columns."""
    output_dir = tmp_path_factory.mktemp("watched") / "run"
    settings = {"study.simulations": 3, "training.log_every_batches": 2}
    return run_study(NUMPY_STUDY, output_dir, num_ranks=2, settings=settings, within=TERMINAL)


def lines(run: Run) -> list[str]:
    """All lines that were ever shown, without colours."""
    return [CONTROL.sub("", line).rstrip() for line in run.output.split("\n")]


def shown_keys(output: str) -> set[str]:
    """The words with which the lines of the screen begin."""
    return {line.split()[0] for line in lines_shown(output, WIDTH) if line.startswith(" ")}


def test_behind_the_pipes_of_mpirun_a_terminal_has_the_live_panel(watched: Run) -> None:
    assert_complete(watched, num_simulations=3)
    assert "\x1b[2K" in watched.output
    shown = "\n".join(lines(watched))
    assert re.search(r"^ simulations +━+.* waiting, .* running, .* done, 0 failed$", shown, re.MULTILINE)
    assert re.search(r"^ loss +\d", shown, re.MULTILINE)


def test_no_line_of_panel_or_summary_is_wider_than_the_terminal(watched: Run) -> None:
    panel = next(number for number, line in enumerate(lines(watched)) if line.startswith(" simulations"))
    told = [line for line in lines(watched)[panel:] if not line.startswith(COMMANDS)]
    assert max(map(len, told)) <= WIDTH


def test_the_summary_has_the_result_first_and_commands_in_one_piece(watched: Run) -> None:
    told = lines(watched)
    start = told.index("ripple: finished")
    assert told[start + 1].split() == ["simulations", "4", "requested,", "4", "finished"]
    assert f"  report        less {watched.output_dir / 'report.json'}" in told[start:]
    assert f"  pictures      stream-study plot {watched.output_dir}" in told[start:]


@pytest.mark.full
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
def test_a_signal_leaves_a_whole_panel_and_what_it_does_on_the_screen(
    start: Callable[..., AbstractContextManager[LiveRun]], program: str
) -> None:
    """The launcher shares the terminal with the server, and mpirun with both."""
    by_launcher = program == "stream-launcher"
    settings = {"simulation.command": ["python", "endless.py"], "study.time_steps": None, "server.ranks": 2}
    options = {"mpi": None} if by_launcher else {"num_ranks": 2}
    with start(program=program, settings=settings, within=TERMINAL, **options) as live:
        live.wait_until(lambda: "batches" in shown_keys(live.said) and "running" in live.log(0))
        started = [it for it in live.processes() if it.ppid() == live.process.pid]
        started[0].send_signal(signal.SIGINT)
        done = live.end()
    shown = lines_shown(done.output, WIDTH)
    words = f"{program}: stopped by SIGINT: the study saves a checkpoint and leaves; once more ends it at once"
    last = shown.index("ripple: saved: run the same command again to go on (exit code 75), stopped by SIGINT")
    panel = shown[shown.index("ripple") : last]
    assert [sum(line.startswith(f" {key} ") for line in panel) for key in ("simulations", "batches", "time")] == [1] * 3
    below = next(number for number, line in enumerate(panel) if line.startswith(" time "))
    # Longer than a line of the terminal.
    assert words in "".join(panel[below:])
