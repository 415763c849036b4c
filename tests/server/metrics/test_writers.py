"""The plain files of the metrics, and how they go on after a restart."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from stream_server.server.metrics.histogram import Histogram
from stream_server.server.metrics.log_record import LoggedRun, Record
from stream_server.server.metrics.writers import (
    HistogramsWriter,
    JsonLinesWriter,
    open_own_writer,
    open_writers,
)
from tests.server.metrics.logged import record


def write_files(folder: Path, batches: list[int], *, after: int) -> None:
    """Log as a run does that begins after a batch."""
    writer = JsonLinesWriter(folder / "m.jsonl", after)
    for batch in batches:
        writer.write(record(batch, loss=0.5))
    writer.close()


def batches_of(path: Path) -> list[int]:
    return [json.loads(line)["batch"] for line in path.read_text().splitlines()]


def test_json_lines_hold_one_log_point_each_and_null_for_what_is_not_finite(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    writer.write(record(10, loss=1.5))
    writer.write(record(20, loss=math.inf))
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"batch": 10, "update": 10, "sample": 100, "wall_s": 1.0, "loss": 1.5},
        {"batch": 20, "update": 20, "sample": 200, "wall_s": 2.0, "loss": None},
    ]


def test_files_of_an_earlier_run_are_continued(tmp_path: Path) -> None:
    for batch in (10, 20):
        write_files(tmp_path, [batch], after=batch - 10)
    assert batches_of(tmp_path / "m.jsonl") == [10, 20]


def test_what_was_logged_behind_the_checkpoint_is_logged_again_and_only_once(tmp_path: Path) -> None:
    write_files(tmp_path, [10, 20, 30], after=0)
    write_files(tmp_path, [30, 40], after=20)
    assert batches_of(tmp_path / "m.jsonl") == [10, 20, 30, 40]


def test_a_line_that_was_torn_by_a_crash_goes_wherever_it_was_torn(tmp_path: Path) -> None:
    write_files(tmp_path, [10, 200], after=0)
    whole = (tmp_path / "m.jsonl").read_bytes()
    kept = whole[: whole.rindex(b"\n", 0, -1) + 1]
    for end in range(len(kept), len(whole)):
        (tmp_path / "m.jsonl").write_bytes(whole[:end])
        write_files(tmp_path, [], after=100)
        assert (tmp_path / "m.jsonl").read_bytes() == kept, f"torn after {whole[len(kept) : end]!r}"


def histogram_record(batch: int, values: list[float]) -> Record:
    return Record(batch=batch, wall_s=1.0, histograms={"seen": Histogram.of(np.array(values))})


def test_histograms_are_lines_of_intervals_with_their_counts(tmp_path: Path) -> None:
    writer = HistogramsWriter(tmp_path / "h.jsonl")
    writer.write(histogram_record(10, [0.0, 0.0, 3.0]))
    writer.close()
    line = json.loads((tmp_path / "h.jsonl").read_text())
    zeros, threes = line.pop("intervals")
    assert line == {"batch": 10, "update": 0, "sample": 0, "wall_s": 1.0, "name": "seen"}
    assert (zeros[0], zeros[2], threes[1:]) == (0.0, 2, [3.0, 1])
    assert 2.0 < threes[0] < 3.0


def test_histograms_behind_the_checkpoint_are_written_only_once(tmp_path: Path) -> None:
    for batches, after in (([10, 20, 30], 0), ([30, 40], 20)):
        writer = HistogramsWriter(tmp_path / "h.jsonl", after)
        for batch in batches:
            writer.write(histogram_record(batch, [1.0]))
        writer.close()
    assert batches_of(tmp_path / "h.jsonl") == [10, 20, 30, 40]


def test_a_validation_at_the_batch_of_the_checkpoint_stays(tmp_path: Path) -> None:
    for after in (0, 20):
        writer = JsonLinesWriter(tmp_path / "m.jsonl", after)
        for batch in (20, 30) if not after else (30,):
            writer.write(record(batch, loss=0.5))
            writer.write(record(batch, **{"val/loss": 0.7}))
        writer.close()
    assert batches_of(tmp_path / "m.jsonl") == [20, 20, 30, 30]


@pytest.mark.parametrize(
    ("validated", "names"),
    [(None, ["loss", "val/far/loss", "val/loss"]), ([], ["loss"]), (["val/far/loss"], ["loss", "val/far/loss"])],
)
def test_of_the_validation_at_the_batch_of_the_checkpoint_stays_what_it_has(
    tmp_path: Path, validated: list[str] | None, names: list[str]
) -> None:
    writer = JsonLinesWriter(tmp_path / "m.jsonl")
    for name in ("loss", "val/far/loss", "val/loss"):
        writer.write(record(20, **{name: 0.5}))
    writer.close()
    JsonLinesWriter(tmp_path / "m.jsonl", 20, validated=validated).close()
    lines = map(json.loads, (tmp_path / "m.jsonl").read_text().splitlines())
    assert [name for line in lines for name in line if "loss" in name] == names


def test_files_of_ranks_that_are_no_more_end_at_the_checkpoint_too(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        writer = open_own_writer(LoggedRun(folder=tmp_path), rank)
        for batch in (10, 20, 30):
            writer.write(record(batch, loss=float(rank)))
        writer.close()
    run = LoggedRun(folder=tmp_path, after=20)
    opened = [*open_writers(run), open_own_writer(run, 0)]
    opened[-1].write(record(30, loss=7.0))
    for writer in opened:
        writer.close()
    assert [batches_of(tmp_path / f"rank-{rank}.jsonl") for rank in (0, 1, 2)] == [[10, 20, 30], [10, 20], [10, 20]]
    assert '"loss": 7.0' in (tmp_path / "rank-0.jsonl").read_text()


def test_files_of_ranks_that_go_on_are_left_to_them(tmp_path: Path) -> None:
    writer = open_own_writer(LoggedRun(folder=tmp_path), 1)
    writer.write(record(30, loss=1.0))
    writer.close()
    for opened in open_writers(LoggedRun(folder=tmp_path, after=20, num_ranks=2)):
        opened.close()
    assert batches_of(tmp_path / "rank-1.jsonl") == [30]


@pytest.mark.parametrize("name", ["metrics.jsonl", "histograms.jsonl", "rank-1.jsonl", "rank-7.jsonl"])
def test_what_a_start_that_was_killed_left_beside_a_file_is_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    (tmp_path / f"{name}.9059b8a7baae.tmp").write_text("half")
    run = LoggedRun(folder=tmp_path, num_ranks=2)
    for writer in [*open_writers(run), open_own_writer(run, 1)]:
        writer.close()
    assert not list(tmp_path.glob("*.tmp"))
