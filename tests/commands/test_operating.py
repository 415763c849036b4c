"""The tables of `stream-study`, on terminals and in files."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from stream_server.commands.operating import print_table

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
