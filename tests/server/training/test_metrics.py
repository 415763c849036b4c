"""Logging is local; what is written is the mean over the ranks that logged."""

import csv
import io
import json
import math
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from stream_server.server.training.histogram import LIMITS, Histogram
from stream_server.server.training.metrics import Metrics, Record
from stream_server.server.training.writers import CsvWriter, JsonLinesWriter, open_writers


class OneOf:
    """One rank of several, in one thread: rank 0 writes last and finds what the others left."""

    def __init__(self, rank: int, mailbox: list[Any]) -> None:
        self.rank = rank
        self._mailbox = mailbox

    def gather(self, value: Any) -> list[Any] | None:
        plain = json.loads(json.dumps(value))
        if self.rank:
            self._mailbox.append(plain)
            return None
        return [plain, *self._mailbox]


class Kept:
    """A writer that keeps its records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


class Figure:
    """What Matplotlib's figure looks like from here."""

    def savefig(self, file: io.BytesIO, *, format: str) -> None:
        assert format == "png"
        file.write(png(width=3, height=2))


def png(*, width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\xff" * 4 * width) * height))
    return b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b"")


def write_on_ranks(*log: Callable[[Metrics], None]) -> Record | None:
    """What rank 0 writes when rank r has logged `log[r]`."""
    mailbox: list[Any] = []
    writer = Kept()
    for rank in reversed(range(len(log))):
        metrics = Metrics(OneOf(rank, mailbox), [writer] if rank == 0 else [])
        log[rank](metrics)
        metrics.write(10, 1.5)
    return writer.records[0] if writer.records else None


def nothing(metrics: Metrics) -> None:
    pass


def test_a_number_is_the_mean_over_the_ranks_that_logged_it() -> None:
    record = write_on_ranks(lambda m: m.log("loss", 1.0), nothing, lambda m: m.log("loss", 3.0))
    assert record is not None
    assert (record.batch, record.wall_s, record.values) == (10, 1.5, {"loss": 2.0})


def test_a_number_logged_often_on_one_rank_is_the_mean_of_all_its_values() -> None:
    def thrice(metrics: Metrics) -> None:
        for value in (1.0, 2.0, 3.0):
            metrics.log("loss", value)

    record = write_on_ranks(thrice, lambda m: m.log("loss", 10.0))
    assert record is not None
    assert record.values == {"loss": 4.0}


def test_a_name_that_only_another_rank_logged_is_written_too() -> None:
    record = write_on_ranks(nothing, lambda m: m.log("rate", 5))
    assert record is not None
    assert record.values == {"rate": 5.0}


def test_what_was_written_is_not_written_again() -> None:
    writer = Kept()
    metrics = Metrics(OneOf(0, []), [writer])
    metrics.log("loss", 1.0)
    metrics.write(1, 0.1)
    metrics.write(2, 0.2)
    assert len(writer.records) == 1
    assert metrics.latest == {"loss": 1.0}


def test_a_number_that_is_not_finite_is_not_hidden() -> None:
    record = write_on_ranks(lambda m: m.log("loss", math.nan), lambda m: m.log("loss", 1.0))
    assert record is not None
    assert math.isnan(record.values["loss"])


def test_a_number_is_taken_as_it_is_when_it_is_logged() -> None:
    metrics = Metrics(OneOf(0, []))
    value = np.array(1.0)
    metrics.log("loss", value)
    value += 1.0
    metrics.write(1, 0.1)
    assert metrics.latest == {"loss": 1.0}


@pytest.mark.parametrize(
    ("value", "found"), [(np.zeros(3), r"an array of shape \(3,\)"), ("1.5", "a str"), (None, "a NoneType")]
)
def test_something_that_is_not_one_number_is_refused(value: object, found: str) -> None:
    with pytest.raises(TypeError, match=found):
        Metrics(OneOf(0, [])).log("loss", value)


def test_histograms_of_several_ranks_are_added() -> None:
    record = write_on_ranks(
        lambda m: m.log_histogram("seen", np.array([0, 1, 1])), lambda m: m.log_histogram("seen", np.array([1, 7]))
    )
    assert record is not None
    seen = record.histograms["seen"]
    assert (seen.num, seen.min, seen.max, seen.sum, seen.sum_squares) == (5, 0.0, 7.0, 10.0, 52.0)
    assert sorted(seen.counts.values()) == [1, 1, 3]


def test_a_histogram_counts_each_value_in_its_interval() -> None:
    values = np.concatenate((np.random.default_rng(0).normal(size=1000), [0.0, 1e-30, -1e30]))
    histogram = Histogram.of(values)
    assert histogram.num == sum(histogram.counts.values()) == 1003
    for place, num in histogram.counts.items():
        lower = LIMITS[place - 1] if place else -math.inf
        assert num == np.count_nonzero((values > lower) & (values <= LIMITS[place]))


def test_a_histogram_leaves_out_what_is_not_finite() -> None:
    assert Histogram.of([1.0, math.inf, math.nan]) == Histogram.of([1.0])


def test_whole_numbers_up_to_ten_are_kept_apart_in_a_histogram() -> None:
    assert len(Histogram.of(np.arange(11)).counts) == 11


def test_a_figure_is_drawn_on_rank_0_alone() -> None:
    record = write_on_ranks(lambda m: m.log_figure("field", Figure()), lambda m: m.log_figure("other", Figure()))
    assert record is not None
    assert record.figures == {"field": png(width=3, height=2)}


def test_something_that_is_no_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a Matplotlib figure, but got a list"):
        Metrics(OneOf(1, [])).log_figure("field", [])


def test_reduced_numbers_are_written_by_rank_0_alone() -> None:
    for rank in (0, 1):
        writer = Kept()
        Metrics(OneOf(rank, []), [writer]).write_reduced(5, 0.5, {"val/loss": 2.0})
        assert len(writer.records) == (rank == 0)


def test_leaving_the_block_closes_the_writers() -> None:
    writer = Kept()
    with Metrics(OneOf(0, []), [writer]):
        pass
    assert writer.closed


def test_a_writer_that_cannot_write_is_dropped_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Full(Kept):
        def write(self, record: Record) -> None:
            raise OSError(28, "No space left on device")

    full, writer = Full(), Kept()
    metrics = Metrics(OneOf(0, []), [full, writer])
    for batch in (10, 20):
        metrics.write_reduced(batch, 0.5, {"val/loss": 2.0})
    assert [it.batch for it in writer.records] == [10, 20]
    assert full.closed
    assert [it.message for it in caplog.records] == ["Full writes no more metrics: [Errno 28] No space left on device"]


def record(batch: int, **values: float) -> Record:
    return Record(batch=batch, wall_s=batch / 10, values=values, histograms={}, figures={})


def write_files(folder: Path, batches: list[int], *, after: int) -> None:
    """What one run logs that begins after a batch."""
    for writer in (JsonLinesWriter(folder / "m.jsonl", after), CsvWriter(folder / "m.csv", after)):
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
    assert lines == [{"batch": 10, "wall_s": 1.0, "loss": 1.5}, {"batch": 20, "wall_s": 2.0, "loss": None}]


def test_a_csv_row_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path / "metrics.csv")
    writer.write(record(10, loss=1.5))
    assert (tmp_path / "metrics.csv").read_text() == "batch,wall_s,loss\n10,1.0,1.5\n"
    writer.close()


def test_a_name_that_comes_later_adds_its_column_to_the_csv(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path / "metrics.csv")
    writer.write(record(10, loss=1.5))
    writer.write(record(20, rate=7.0))
    writer.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"batch": "10", "wall_s": "1.0", "loss": "1.5", "rate": ""},
        {"batch": "20", "wall_s": "2.0", "loss": "", "rate": "7.0"},
    ]


def test_files_of_an_earlier_run_are_continued(tmp_path: Path) -> None:
    for batch in (10, 20):
        write_files(tmp_path, [batch], after=batch - 10)
    assert batches_of(tmp_path / "m.jsonl") == [10, 20]
    assert (tmp_path / "m.csv").read_text() == "batch,wall_s,loss\n10,1.0,0.5\n20,2.0,0.5\n"


def test_what_was_logged_behind_the_checkpoint_is_logged_again_and_only_once(tmp_path: Path) -> None:
    write_files(tmp_path, [10, 20, 30], after=0)
    write_files(tmp_path, [30, 40], after=20)
    assert batches_of(tmp_path / "m.jsonl") == [10, 20, 30, 40]
    assert [line.split(",")[0] for line in (tmp_path / "m.csv").read_text().split()] == [
        "batch",
        "10",
        "20",
        "30",
        "40",
    ]


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv"])
def test_a_line_that_was_torn_by_a_crash_goes_wherever_it_was_torn(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, [10, 200], after=0)
    whole = (tmp_path / name).read_bytes()
    kept = whole[: whole.rindex(b"\n", 0, -1) + 1]
    for end in range(len(kept), len(whole)):
        (tmp_path / name).write_bytes(whole[:end])
        write_files(tmp_path, [], after=100)
        assert (tmp_path / name).read_bytes() == kept, f"torn after {whole[len(kept) : end]!r}"


def test_a_csv_file_that_was_torn_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("batch,wa")
    write_files(tmp_path, [10], after=0)
    assert (tmp_path / "m.csv").read_text() == "batch,wall_s,loss\n10,1.0,0.5\n"


def test_the_columns_of_an_earlier_run_stay(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path / "m.csv")
    writer.write(record(10, loss=0.5))
    writer.write(record(20, lr=0.1))
    writer.close()
    write_files(tmp_path, [20], after=10)
    assert (tmp_path / "m.csv").read_text() == "batch,wall_s,loss,lr\n10,1.0,0.5,\n20,2.0,0.5,\n"


def test_tensorboard_reads_back_scalars_histograms_and_figures(tmp_path: Path) -> None:
    writers = open_writers(tmp_path)
    with Metrics(OneOf(0, []), writers) as metrics:
        metrics.log("train/loss", 0.25)
        metrics.log_histogram("buffer/seen", np.array([1, 1, 4]))
        metrics.log_figure("field", Figure())
        metrics.write(30, 2.0)
    script = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
(loss,) = events.Scalars("train/loss")
(seen,) = events.Histograms("buffer/seen")
(field,) = events.Images("field")
value = seen.histogram_value
print(loss.step, loss.value, value.num, value.min, value.max, sum(value.bucket), field.width, field.height)
"""
    read = run(
        [sys.executable, "-c", script, str(tmp_path / "tensorboard")], check=True, capture_output=True, text=True
    )
    assert read.stdout.split() == ["30", "0.25", "3.0", "1.0", "4.0", "3.0", "3", "2"]


def test_tensorboard_shows_what_was_logged_behind_the_checkpoint_only_once(tmp_path: Path) -> None:
    for batches, after, loss in (([10, 20, 30, 40], 0, 1.0), ([30, 40, 50], 20, 2.0)):
        writers = open_writers(tmp_path, after)
        for batch in batches:
            for writer in writers:
                writer.write(record(batch, loss=loss))
        for writer in writers:
            writer.close()
    script = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
print(*((event.step, event.value) for event in events.Scalars("loss")))
"""
    read = run(
        [sys.executable, "-c", script, str(tmp_path / "tensorboard")], check=True, capture_output=True, text=True
    )
    assert read.stdout == "(10, 1.0) (20, 1.0) (30, 2.0) (40, 2.0) (50, 2.0)\n"


def test_writing_for_tensorboard_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from stream_server.server.training.writers import open_writers
for writer in open_writers(Path(sys.argv[1])):
    writer.close()
print(*sorted({"torch", "tensorflow"} & set(sys.modules)))
"""
    loaded = run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""
