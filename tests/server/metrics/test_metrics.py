"""Logging is local; what is written is the mean over the ranks that logged."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.errors import UserCodeError
from stream_server.messages.routing import Dealing, Routing
from stream_server.server.metrics.log_record import LoggedRun, Record
from stream_server.server.metrics.logged_numbers import Reduce
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from stream_server.server.progress.progress import Progress
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.server.metrics.logged import Figure, Kept, OneOf, png


def write_on_ranks(*log: Callable[[Metrics], None]) -> Record | None:
    """The record that rank 0 writes when rank r has logged `log[r]`."""
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


def test_the_statistics_of_a_histogram_are_numbers_of_all_ranks() -> None:
    record = write_on_ranks(lambda m: m.log_histogram("age", [1.0, 3.0]), lambda m: m.log_histogram("age", [8.0]))
    assert record is not None
    mean, std = np.mean([1, 3, 8]), np.std([1, 3, 8])
    assert record.values == pytest.approx({"age/mean": mean, "age/std": std, "age/min": 1.0, "age/max": 8.0})


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
            raise OSError(13, "Permission denied")

    full, writer = Full(), Kept()
    metrics = Metrics(OneOf(0, []), [full, writer])
    for batch in (10, 20):
        metrics.write_reduced(batch, 0.5, {"val/loss": 2.0})
    assert [it.batch for it in writer.records] == [10, 20]
    assert full.closed
    told = ["Full writes no more metrics: [Errno 13] Permission denied"]
    assert [it.message for it in caplog.records] == metrics.warnings == told


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Within, files of this process in the folder are on a disk that takes nothing."""
    links = {int(it.name): it for it in Path("/proc/self/fd").iterdir()}
    below = [number for number, link in links.items() if os.path.lexists(link) and link.resolve().parent == folder]
    kept = [os.dup(number) for number in below]
    with Path("/dev/full").open("wb") as refusing:
        for number in below:
            os.dup2(refusing.fileno(), number, inheritable=False)
    try:
        yield
    finally:
        for number, own in zip(below, kept, strict=True):
            os.dup2(own, number, inheritable=False)
            os.close(own)


def test_what_a_full_disk_does_not_take_is_written_once_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = LoggedRun(folder=tmp_path, num_ranks=1, after=0)
    with Metrics(OneOf(0, []), open_writers(run)) as metrics:
        metrics.write_reduced(10, 0.5, {"val/loss": 3.0})
        with full(tmp_path):
            for batch in (20, 30):
                metrics.write_reduced(batch, 0.5, {"val/loss": 2.0})
        metrics.write_reduced(40, 0.5, {"val/loss": 1.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [it["batch"] for it in lines] == [10, 20, 30, 40]
    [told] = [it.message for it in caplog.records]
    assert told.startswith("JsonLinesWriter may lose metrics while the disk takes none: [Errno 28]")


def test_a_writer_that_changes_its_record_changes_it_for_no_other() -> None:
    class Emptying(Kept):
        def write(self, record: Record) -> None:
            record.values.clear()  # type: ignore[attr-defined]

    writer = Kept()
    metrics = Metrics(OneOf(0, []), [Emptying(), writer])
    metrics.write_reduced(10, 0.5, {"val/loss": 2.0})
    assert writer.records[0].values == metrics.latest == {"val/loss": 2.0}


def test_a_record_stands_at_the_updates_and_samples_of_the_progress() -> None:
    progress, writer = Progress(), Kept()
    metrics = Metrics(OneOf(0, []), [writer], progress=progress)
    progress.updates, progress.samples = 5, 40
    metrics.log("loss", 1.0)
    metrics.write(10, 1.5)
    metrics.write_reduced(10, 1.5, {"val/loss": 2.0})
    axes = {"batch": 10, "update": 5, "sample": 40, "wall_s": 1.5}
    assert [it.axes for it in writer.records] == [axes, axes]


@pytest.mark.parametrize("name", ["batch", "update", "sample", "wall_s"])
def test_a_number_cannot_have_the_name_of_an_axis(name: str) -> None:
    with pytest.raises(ValueError, match="takes another name"):
        Metrics(OneOf(0, [])).log(name, 1.0)


def test_every_rank_writes_its_own_means_to_its_own_file() -> None:
    mailbox: list[Any] = []
    own = {rank: Kept() for rank in (0, 1)}
    reduced = Kept()
    for rank in (1, 0):
        metrics = Metrics(OneOf(rank, mailbox), [reduced] if rank == 0 else [], own=own[rank])
        metrics.log("loss", rank)
        metrics.log("loss", rank + 2.0)
        metrics.write(10, 1.5)
        metrics.close()
    assert [own[rank].records[0].values for rank in (0, 1)] == [{"loss": 1.0}, {"loss": 2.0}]
    assert [it.values for it in reduced.records] == [{"loss": 1.5}]
    assert all(it.closed for it in own.values())


def test_gauges_are_read_once_for_a_batch_and_what_was_logged_since_is_written_all_the_same() -> None:
    writer = Kept()
    metrics = Metrics(OneOf(0, []), [writer])
    metrics.gauges.append(lambda metrics: metrics.log("fill", 3))
    metrics.write(10, 1.0)
    metrics.log("last", 1.0)
    metrics.write(10, 1.1)
    metrics.write(20, 2.0)
    assert [it.values for it in writer.records] == [{"fill": 3}, {"last": 1.0}, {"fill": 3}]


def test_gauges_are_not_read_again_at_the_batch_at_which_a_continued_run_was_saved() -> None:
    progress, writer = Progress(), Kept()
    progress.batches = 10
    metrics = Metrics(OneOf(0, []), [writer], progress=progress)
    metrics.gauges.append(lambda metrics: metrics.log("fill", 3))
    metrics.write(10, 1.0)
    metrics.write(11, 1.0)
    assert [it.batch for it in writer.records] == [11]


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", 11 / 5), ("last", (3 + 4) / 2), ("sum", 11.0), ("max", 4.0), ("min", -1.0)]
)
def test_a_number_is_reduced_as_it_is_asked_for(reduce: Reduce, expected: float) -> None:
    def log(*values: float) -> Callable[[Metrics], None]:
        def on_rank(metrics: Metrics) -> None:
            for value in values:
                metrics.log("x", value, reduce=reduce)

        return on_rank

    record = write_on_ranks(log(1.0, -1.0, 3.0), nothing, log(4.0, 4.0))
    assert record is not None
    assert record.values == {"x": pytest.approx(expected)}


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_the_largest_of_what_is_not_finite_is_not_hidden(reduce: Reduce) -> None:
    record = write_on_ranks(lambda m: m.log("x", math.nan, reduce=reduce), lambda m: m.log("x", 1.0, reduce=reduce))
    assert record is not None
    assert math.isnan(record.values["x"])


def test_a_name_has_one_reduction() -> None:
    metrics = Metrics(OneOf(0, []))
    metrics.log("x", 1.0)
    with pytest.raises(ValueError, match='takes the same reduce each time, but got "max" after "mean"'):
        metrics.log("x", 1.0, reduce="max")
    with pytest.raises(ValueError, match="reduce must be one of"):
        metrics.log("y", 1.0, reduce="median")  # type: ignore[arg-type]
    with pytest.raises(UserCodeError, match="must have the same reduce on all ranks"):
        write_on_ranks(lambda m: m.log("x", 1.0), lambda m: m.log("x", 1.0, reduce="max"))


class Together:
    """The metrics of several ranks, which are written together and saved."""

    def __init__(self, num: int, states: Sequence[Any] = ()) -> None:
        self.mailbox: list[Any] = []
        self.writer = Kept()
        self.of_ranks = [Metrics(OneOf(rank, self.mailbox), [] if rank else [self.writer]) for rank in range(num)]
        for rank, metrics in enumerate(self.of_ranks if states else ()):
            own = len(states) == num
            dealing = Dealing(Routing.STEPS, num)
            metrics.load_state_dict(states[rank] if own else metrics.redealt(states, rank, dealing))

    def write(self, batch: int) -> dict[str, float]:
        self.mailbox.clear()
        num = len(self.writer.records)
        for metrics in reversed(self.of_ranks):
            metrics.write(batch, batch / 10)
        return dict(self.writer.records[-1].values) if len(self.writer.records) > num else {}

    def saved(self) -> list[Any]:
        return [from_bytes(to_bytes(metrics.state_dict())) for metrics in self.of_ranks]


@pytest.mark.parametrize("num_after", [1, 2, 3, 5])
def test_what_is_kept_is_of_the_whole_run_so_far_also_after_a_restart_on_other_ranks(num_after: int) -> None:
    random, logged = np.random.default_rng(1), [np.empty(0)]
    reduces: dict[Reduce, Any] = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}

    def log(metrics: Metrics) -> None:
        for value in random.normal(size=3):
            logged.append(np.array([value]))
            for reduce in reduces:
                metrics.log(reduce, value, reduce=reduce, keep=True)
            metrics.log("window", value)

    def expected() -> dict[str, Any]:
        return {name: pytest.approx(of(np.concatenate(logged)), rel=1e-12) for name, of in reduces.items()}

    study = Together(3)
    for batch, rank in ((10, 0), (20, 1), (30, 2)):
        log(study.of_ranks[rank])
        log(study.of_ranks[0])
        window = np.mean(np.concatenate(logged[-6:]))
        assert study.write(batch) == {**expected(), "window": pytest.approx(window)}
    # Logged and saved, but not written before the end.
    log(study.of_ranks[1])
    again = Together(num_after, study.saved())
    log(again.of_ranks[-1])
    window = np.mean(np.concatenate(logged[-3:]))
    assert again.write(40) == {**expected(), "window": pytest.approx(window)}
    assert again.write(40) == again.write(50) == {}


def test_the_last_number_that_is_kept_is_that_of_each_rank() -> None:
    study = Together(2)
    for rank, values in ((0, [1.0, 2.0]), (1, [5.0])):
        for value in values:
            study.of_ranks[rank].log("x", value, reduce="last", keep=True)
    assert study.write(10) == {"x": 3.5}
    study.of_ranks[1].log("x", 6.0, reduce="last", keep=True)
    assert study.write(20) == {"x": 4.0}
    alone = Together(1, study.saved())
    alone.of_ranks[0].log("y", 1.0)
    assert alone.write(30) == {"y": 1.0}
    alone.of_ranks[0].log("x", 9.0, reduce="last", keep=True)
    assert alone.write(40) == {"x": 9.0}


def test_in_a_validation_too_what_is_kept_stands_at_the_next_log_point() -> None:
    study = Together(1)
    for value in (1.0, 3.0):
        with study.of_ranks[0].apart() as apart:
            study.of_ranks[0].log("x", value, keep=True)
        assert not apart
        study.write(10)
    assert [it.values for it in study.writer.records] == [{"val/x": 1.0}, {"val/x": 2.0}]


def test_a_name_is_kept_in_the_whole_run_or_never_and_has_no_step_then() -> None:
    study = Together(1)
    metrics = study.of_ranks[0]
    metrics.log("x", 1.0)
    metrics.log("y", 1.0, keep=True)
    study.write(10)
    for again in (metrics, Together(1, study.saved()).of_ranks[0]):
        for options in ({}, {"keep": True, "reduce": "max"}, {"keep": True, "step": 0}):
            with pytest.raises(
                ValueError, match=r"log\('y', …\) takes no step with keep=True, and the same keep and reduce"
            ):
                again.log("y", 1.0, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"log\('x', …\) takes no step"):
        metrics.log("x", 1.0, keep=True)


def test_writers_that_want_to_know_it_are_told_how_the_run_ended(caplog: pytest.LogCaptureFixture) -> None:
    class Told(Kept):
        def end(self, status: str, reason: str) -> None:
            assert not self.closed
            self.said = (status, reason)

    class Failing(Kept):
        def end(self, status: str) -> None:
            raise AssertionError("it takes no reason")

    told, failing, silent = Told(), Failing(), Kept()
    with Metrics(OneOf(0, []), [failing, told, silent]) as metrics:
        metrics.end("failed", "no data")
    assert told.said == ("failed", "no data")
    assert [it.closed for it in (told, failing, silent)] == [True] * 3
    assert "Failing writes no more metrics: " in caplog.messages[0]


def test_a_number_with_a_step_stands_at_its_batch_and_before_what_comes_later() -> None:
    progress, writer, own = Progress(), Kept(), Kept()
    metrics = Metrics(OneOf(0, []), [writer], own=own, progress=progress)
    for batch in range(21, 31):
        progress.batches, progress.updates, progress.samples = batch, batch - 1, 10 * batch
        metrics.log("loss", batch)
        if batch in (21, 28):
            metrics.log("probe", batch / 10, step=batch)
        if batch == 25:
            metrics.write_reduced(25, 2.5, {"val/loss": 1.0})
    metrics.write(30, 3.0)
    found = [(it.batch, it.update, it.sample, dict(it.values), it.is_log_point) for it in writer.records]
    assert found == [
        (21, 20, 210, {"probe": 2.1}, False),
        (25, 24, 250, {"val/loss": 1.0}, False),
        (28, 27, 280, {"probe": 2.8}, False),
        (30, 29, 300, {"loss": 25.5}, True),
    ]
    assert [it.batch for it in own.records] == [21, 28, 30]


def test_numbers_of_one_step_are_united_over_the_ranks() -> None:
    mailbox: list[Any] = []
    writer = Kept()
    for rank in (1, 0):
        metrics = Metrics(OneOf(rank, mailbox), [writer] if rank == 0 else [])
        metrics.log("probe", rank, step=3)
        metrics.log("probe", 5, step=4 + rank)
        metrics.write(10, 1.0)
    assert [(it.batch, it.values) for it in writer.records] == [
        (3, {"probe": 0.5}),
        (4, {"probe": 5}),
        (5, {"probe": 5}),
    ]


def test_a_step_lies_between_the_last_log_point_and_now() -> None:
    progress = Progress()
    progress.batches = 20
    metrics = Metrics(OneOf(0, []), progress=progress)
    metrics.write(20, 1.0)
    progress.batches = 25
    for step in (20, 25):
        metrics.log("x", 1.0, step=step)
    for step in (19, 26):
        with pytest.raises(ValueError, match=f"takes a step between 20, .*, and 25, .* but got {step}"):
            metrics.log("x", 1.0, step=step)
    with pytest.raises(TypeError, match=r"takes a whole number of batches as step, but got 2\.5"):
        metrics.log("x", 1.0, step=2.5)  # type: ignore[arg-type]


def test_in_a_validation_what_is_no_mean_is_written_under_its_names() -> None:
    writer = Kept()
    metrics = Metrics(OneOf(0, []), [writer])
    metrics.log("worst", 1.0, reduce="max")
    metrics.log_histogram("seen", [1.0])
    with metrics.apart() as found:
        metrics.log("worst", 9.0, reduce="max")
        metrics.log("error", 2.0)
        metrics.log_histogram("seen", [5.0])
        metrics.log_figure("field", Figure())
    metrics.write(1, 0.0)
    assert found == {"error": [2.0]}
    [record] = writer.records
    assert {name: it.max for name, it in record.histograms.items()} == {"seen": 1.0, "val/seen": 5.0}
    assert [*record.figures] == ["val/field"]
    assert (record.values["worst"], record.values["val/worst"]) == (1.0, 9.0)


@pytest.mark.parametrize("users_first", [True, False])
@pytest.mark.parametrize("name", ["buffer/age", "val/loss"])
def test_a_histogram_or_a_value_of_a_validation_is_none_for_the_user(name: str, *, users_first: bool) -> None:
    server = StreamServer()
    server.hold_attributes(_metrics=Metrics(OneOf(0, [])))
    of_user: list[Callable[[], None]] = [lambda: server.log_histogram("buffer/age", [9.0])]
    of_study: list[Callable[[], None]] = [lambda: server._metrics.log_histogram("buffer/age", [1.0])]
    if name == "buffer/age":
        of_user.append(lambda: server.log("buffer/age/mean", 9.0))
    else:
        of_user = [lambda: server.log("val/loss", 9.0)]
        of_study = [lambda: server._metrics.write_reduced(1, 0.5, {"val/loss": 2.0})]
    for theirs in of_user:
        server.hold_attributes(_metrics=Metrics(OneOf(0, [])))
        first, second = (theirs, of_study[0]) if users_first else (of_study[0], theirs)
        first()
        first()
        with pytest.raises(UserCodeError, match=f"would be mixed with {name}.*, which the study logs by itself"):
            second()


@pytest.mark.parametrize("users_first", [True, False])
def test_a_name_that_the_study_logs_is_none_for_the_user(*, users_first: bool) -> None:
    metrics = Metrics(OneOf(0, []))
    metrics.log("train/loss", 0.5, by_user=users_first)
    metrics.log("train/loss", 0.5, by_user=users_first)
    with pytest.raises(
        UserCodeError, match=r'self\.log\("train/loss", …\) would be mixed with train/loss, which the study'
    ):
        metrics.log("train/loss", 50.0, by_user=not users_first)
