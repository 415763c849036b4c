"""Reading the files of a run, also while it writes them."""

import math
from pathlib import Path

import pytest

from stream_server.analysis.reading import (
    RunFolder,
    lines_of,
    names_in,
    read_histograms,
    read_records,
    records_of_ranks,
)
from stream_server.errors import ConfigError
from tests.analysis.logged_run import log_run


def test_records_are_those_of_log_points_and_validations(tmp_path: Path) -> None:
    records = read_records(RunFolder(log_run(tmp_path)))
    assert [record["batch"] for record in records] == [10, 20, 20, 30, 40, 40, 50]
    assert (records[0]["update"], records[0]["sample"], records[0]["wall_s"]) == (5, 100, 1.0)
    assert (records[1]["train/loss"], records[2]["val/loss"]) == (0.05, 0.1)
    assert names_in(records)[0] == "train/loss"
    assert names_in(records)[-1] == "val/loss"


def test_the_records_of_a_continued_run_have_no_gap_and_no_overlap(tmp_path: Path) -> None:
    log_run(tmp_path, range(10, 60, 10))
    log_run(tmp_path, range(40, 80, 10), after=30)
    assert [record["batch"] for record in read_records(RunFolder(tmp_path))] == [10, 20, 20, 30, 40, 40, 50, 60, 60, 70]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = b'{"batch": 10, "loss": 1.0}\n'
    next_line = b'{"batch": 20, "loss": 0.5}'
    for end in range(len(next_line) + 1):
        path.write_bytes(whole + next_line[:end])
        assert list(lines_of(path)) == [{"batch": 10, "loss": 1.0}]


@pytest.mark.parametrize("damage", [b"\0\0\0", b"[1, 2]", b'{"loss": 1.0}'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"batch": 10}\n' + damage + b'\n{"batch": 30}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        list(lines_of(path))


def test_what_was_not_finite_is_read_as_nan(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"batch": 10, "loss": null}\n')
    assert math.isnan(read_records(RunFolder(tmp_path))[0]["loss"])


def test_a_run_that_has_logged_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no metrics yet"):
        read_records(RunFolder(tmp_path))
    with pytest.raises(ConfigError, match="has no metrics of single ranks yet"):
        list(records_of_ranks(RunFolder(tmp_path)))


def test_the_lines_of_each_rank_are_read_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    log_run(tmp_path)
    for rank in (10, 2):
        (tmp_path / "metrics" / f"rank-{rank}.jsonl").write_text(f'{{"batch": {rank}}}\n')
    records = list(records_of_ranks(RunFolder(tmp_path)))
    assert list(dict.fromkeys(rank for rank, _ in records)) == [0, 2, 10]
    assert records[-1] == (10, {"batch": 10})


def test_histograms_are_read_by_name(tmp_path: Path) -> None:
    (line,) = read_histograms(RunFolder(log_run(tmp_path)), "buffer/seen")
    assert (line["batch"], [num for *_, num in line["intervals"]]) == (10, [1, 2, 1, 1])
    assert read_histograms(RunFolder(tmp_path), "buffer/age") == []
