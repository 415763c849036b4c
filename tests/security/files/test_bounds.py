"""Files of others take no more memory or time than those that a study writes itself."""

import io
import json
import os
import tracemalloc
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from stream_server.analysis import follow, growing, simulations
from stream_server.analysis.export import MAX_COLUMNS, export
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.simulations import simulations_of
from stream_server.config import load
from stream_server.config.problems import MAX_PROBLEMS
from stream_server.errors import ConfigError
from stream_server.storage.disk import UnusableFile
from stream_server.studies.run import Run

MIB = 1 << 20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def peak_of(action: Callable[[], object]) -> int:
    """The most memory that it takes, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("content", "num"), [(b"a", 8 * MIB), (b"\xff", 4 * MIB), (b"\r", MIB), (b"a\r", MIB // 4)])
@pytest.mark.parametrize("simulation", [None, 0])
def test_a_log_of_one_long_line_is_read_in_pieces(
    tmp_path: Path, content: bytes, num: int, simulation: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 1 << 16)
    log = tmp_path / ("logs/server-0.log" if simulation is None else "simulations/0/attempt-0/output.log")
    log.parent.mkdir(parents=True)
    log.write_bytes(content * num)

    tail = follow.Tail(log, num_bytes=follow.MAX_LOG_BYTES)
    # In a piece each state of a progress bar may be one byte, and is some eighty times as large in memory.
    assert peak_of(lambda: deque(tail.lines(is_last=True), 2)) < 12 * MIB
    with redirect_stdout(io.StringIO()) as shown:
        follow.show(RunFolder(tmp_path), simulation, num_lines=None, follows=False, runs=lambda: False)
    if len(content) == 1 and content != b"\r":
        assert shown.getvalue().count(content.decode(errors="replace")) >= num


@pytest.mark.parametrize("simulation", [None, 0])
def test_of_a_log_without_end_the_end_is_read(
    tmp_path: Path, simulation: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(follow, "LINE_BYTES", 1 << 10)
    log = tmp_path / ("logs/server-0.log" if simulation is None else "simulations/0/attempt-0/output.log")
    log.parent.mkdir(parents=True)
    log.write_text("first\n")
    os.truncate(log, 1 << 40)
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(100))

    def shown(num_lines: int | None) -> list[str]:
        follow.show(RunFolder(tmp_path), simulation, num_lines=num_lines, follows=False, runs=lambda: False)
        return [line.rpartition("| ")[2] for line in capsys.readouterr().out.splitlines()]

    assert shown(3) == ["line 97", "line 98", "line 99"]
    assert Run(tmp_path).log(simulation, 3) == "line 97\nline 98\nline 99"
    monkeypatch.setattr(follow, "MAX_LOG_BYTES", 100)
    follow.show(RunFolder(tmp_path), simulation, num_lines=None, follows=False, runs=lambda: False)
    said = capsys.readouterr()
    assert said.out.endswith("line 99\n")
    assert said.out.count("\n") == 13
    assert said.err == f"the first 1.0 TiB of {log} were left out\n"


def test_whole_logs_are_shown_in_the_memory_of_a_few_lines(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / "logs" / f"server-{rank}.log", f"{'x' * 99}\n" * 20_000)

    def show() -> None:
        follow.show(RunFolder(tmp_path), None, num_lines=None, follows=False, runs=lambda: False)

    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        assert peak_of(show) < 2 * MIB


def test_of_logs_without_number_some_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MAX_LOGS", 3)
    for number in range(5):
        write(tmp_path / "logs" / f"{number}.log", "")
    assert len(follow.server_logs(RunFolder(tmp_path))) == 3


def test_a_log_that_is_written_while_it_is_read_comes_to_an_end(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("1\n")
    num = 0
    with log.open("a") as file:
        for _ in follow.Tail(log, num_bytes=100).lines(is_last=True):
            num += 1
            file.write("1\n")
            file.flush()
    assert num == 1


def metrics(folder: Path, num_bytes: int) -> RunFolder:
    """A run that has logged as much as that, in lines of 60 values."""
    values = {f"group/name-{number}": number / 7 for number in range(60)}
    line = json.dumps({"batch": 1000, "update": 1000, "sample": 10000, "wall_s": 12.345} | values) + "\n"
    path = folder / "metrics" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(line * (num_bytes // len(line)))
    return RunFolder(folder)


@pytest.mark.parametrize("wide", [False, True])
def test_a_table_takes_a_few_times_the_memory_of_what_was_logged(tmp_path: Path, wide: bool) -> None:
    run = metrics(tmp_path, 2 * MIB)
    assert peak_of(lambda: export([run], tmp_path / "table.csv", wide=wide)) < 10 * MIB


def test_a_table_has_no_column_for_each_of_thousands_of_names(tmp_path: Path) -> None:
    run = metrics(tmp_path, 1000)
    with (run.metrics / "metrics.jsonl").open("a") as file:
        file.writelines(f'{{"batch": {number}, "name-{number}": 1.0}}\n' for number in range(MAX_COLUMNS))
    assert export([run], tmp_path / "table.csv") == MAX_COLUMNS
    with pytest.raises(ConfigError, match="omit --wide"):
        export([run], tmp_path / "table.csv", wide=True)


def test_neither_a_line_without_end_nor_a_file_without_end_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n")
    file = growing.GrowingFile(path, lambda lines, first: lines.splitlines())
    for size in (4 * growing.PIECE_BYTES, 4 * growing.MAX_FOLLOWED_BYTES):
        os.truncate(path, size)
        for _ in range(2):
            with pytest.raises(UnusableFile, match="It has "):
                assert peak_of(file.update) < 4 * growing.PIECE_BYTES
        assert file.items == [b"1"]
    path.write_bytes(b"1\n" + b"2\n" * 100)
    monkeypatch.setattr(growing, "PIECE_BYTES", 16)
    file.update()
    assert file.items == [b"1", *[b"2"] * 100]


def test_a_line_of_metrics_without_end_is_damaged(tmp_path: Path) -> None:
    run = metrics(tmp_path, 1000)
    os.truncate(run.metrics / "metrics.jsonl", 4 * growing.PIECE_BYTES)
    with pytest.raises(ConfigError, match="is damaged: it has more than"):
        export([run], tmp_path / "table.csv")


@pytest.mark.parametrize("in_section", [False, True])
def test_of_thousands_of_unknown_keys_the_first_are_named(tmp_path: Path, in_section: bool) -> None:
    keys = {f"key{number}": 1 for number in range(5000)}
    study: dict[str, object] = {"name": "x"}
    (tmp_path / "study.json").write_text(json.dumps({"study": study | keys} if in_section else {"study": study} | keys))
    with pytest.raises(ConfigError, match="has more than 100 problems, the first of which are:") as error:
        load(tmp_path / "study.json")
    assert str(error.value).count("\n") == MAX_PROBLEMS


def test_a_simulation_that_was_never_started_costs_no_look_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simulations" / "7" / "attempt-0").mkdir(parents=True)
    (tmp_path / "parameters.csv").write_text("simulation,p\n" + "".join(f"{number},0.5\n" for number in range(100)))
    looked_at: list[int] = []
    look = simulations.attempt_folders
    monkeypatch.setattr(
        simulations, "attempt_folders", lambda run, number: looked_at.append(number) or look(run, number)
    )
    assert [it.attempts for it in simulations_of(RunFolder(tmp_path))] == [int(number == 7) for number in range(100)]
    assert set(looked_at) == {7}


def test_no_more_simulations_are_read_than_a_study_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "MAX_SIMULATIONS", 10)
    for num in (10, 11):
        lines = (f"{number},0.5\n" for number in range(num))
        (tmp_path / "parameters.csv").write_text("simulation,p\n" + "".join(lines))
        assert len(simulations_of(RunFolder(tmp_path))) == (num if num == 10 else 0)
