"""The tables of `stream-study`, on terminals and in files."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from stream_server.analysis import live
from stream_server.analysis.reading import RunFolder
from stream_server.commands import operating
from stream_server.commands.cli import main, parser
from stream_server.commands.operating import print_table
from stream_server.machine.study_lock import RUN_LOCK

REASON = "ended with exit code 1: FloatingPointError: CFL number 1.2"


def table(num_parameters: int) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("id", *(f"p{i}" for i in range(num_parameters)), ""):
        made.add_column(name, overflow="fold")
    made.add_row("0", *["0.0489063"] * num_parameters, REASON)
    return made


def printed(num_parameters: int, *, width: int, is_terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    print_table(table(num_parameters), console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_in_a_file_a_row_is_one_line() -> None:
    lines = printed(2, width=40, is_terminal=False)
    assert len(lines) == 2
    assert lines[1] == f"0   0.0489063  0.0489063  {REASON}"


def test_in_a_file_columns_are_aligned_by_the_width_of_their_characters() -> None:
    made = Table(box=None, pad_edge=False)
    for name in ("name", "state"):
        made.add_column(name)
    made.add_row("温度", "waiting")
    made.add_row("heat 12", "running")
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    print_table(made, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "name     state\n温度     waiting\nheat 12  running\n"


def test_on_a_terminal_only_the_last_column_goes_on_below() -> None:
    lines = printed(2, width=50, is_terminal=True)
    assert lines[1].startswith("0   0.0489063  0.0489063  ended")
    assert all(line.startswith(" " * 26) for line in lines[2:])
    assert len(lines) > 2


@pytest.mark.parametrize("is_terminal", [False, True])
def test_nothing_is_lost_where_there_is_too_little_room(*, is_terminal: bool) -> None:
    text = "".join("".join(printed(8, width=40, is_terminal=is_terminal)).split())
    assert text.count("0") >= 1 + 2 * 8
    assert "…" not in text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was killed before any of its two simulations began."""
    folder = tmp_path / "runs" / "heat"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text('{"checkpoint": {"dir": null}}')
    (folder / RUN_LOCK).touch()
    (folder / "parameters.csv").write_text("simulation,left,right\n0,0.5,1\n1,0.25,2\n")
    return folder


def test_the_table_of_simulations_has_their_parameters(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulations", str(run)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "left", "right", "attempts", "state", "seconds", "steps", "val", "error"]
    assert [row.split() for row in rows] == [
        ["0", "0.5", "1", "0", "waiting", "-", "-", "-"],
        ["1", "0.25", "2", "0", "waiting", "-", "-", "-"],
    ]


def test_parameters_for_which_there_is_no_room_are_counted(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating, "MOST_PARAMETERS", 1)
    assert main(["simulations", str(run)]) == 0
    header, *_, last = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["id", "left", "attempts"]
    assert last == f"1 more parameter: see {run / 'parameters.csv'}"


def test_the_list_has_a_line_for_each_run_below_a_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(run.parent)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "checkpoint", "batches", "in", "it"]
    assert row.split()[:4] == [str(run), "killed", "-", "-"]
    assert main(["list", str(run.parent), "--json"]) == 0
    assert [it["run"] for it in json.loads(capsys.readouterr().out)] == [str(run)]


def test_a_folder_that_is_not_there_has_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"stream-study: there is no folder {tmp_path / 'nowhere'}\n"


@pytest.mark.parametrize("finish", [False, True])
def test_stop_says_what_rank_0_answers_and_waits_for_the_end_if_asked(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, finish: bool
) -> None:
    def stop(folder: RunFolder, timeout_s: float, *, finish: bool) -> str:
        return f"asked within {timeout_s:g} s, finish: {finish}"

    monkeypatch.setattr(live, "stop", stop)
    assert main(["stop", str(run), "--wait", "--timeout", "3", *(["--finish"] if finish else [])]) == 0
    asked, ended = capsys.readouterr().out.splitlines()
    assert asked == f"{run}: asked within 3 s, finish: {finish}"
    assert ended.startswith(f"{run}: killed")


def test_logs_are_followed_and_cut_as_asked() -> None:
    asked = parser().parse_args(["logs", "runs/heat", "3", "-f", "-n", "5"])
    assert (asked.run, asked.simulation, asked.follow, asked.lines) == (Path("runs/heat"), 3, True, 5)
    asked = parser().parse_args(["logs", "runs/heat"])
    assert (asked.simulation, asked.follow, asked.lines) == (None, False, operating.NUM_LINES)
