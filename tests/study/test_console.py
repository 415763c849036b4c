"""The console of a whole study under mpirun: in a terminal, and in a file."""

import re
import sys
from pathlib import Path

import pytest

import tests.support.in_terminal
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_study

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


def test_behind_the_pipes_of_mpirun_a_terminal_has_the_live_panel(watched: Run) -> None:
    assert_complete(watched, num_simulations=3)
    assert "\x1b[2K" in watched.output
    shown = "\n".join(lines(watched))
    assert re.search(r"^ simulations +━+.* waiting, .* running, .* done, 0 failed$", shown, re.MULTILINE)
    assert re.search(r"^ loss +[▁▂▃▄▅▆▇█]+ +\d", shown, re.MULTILINE)


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
