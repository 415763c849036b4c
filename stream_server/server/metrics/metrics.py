"""Metrics of a training: numbers, histograms and figures, reduced over the ranks where they are written."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol

from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint
from stream_server.machine.screen import LOST
from stream_server.server.metrics.histogram import Histogram
from stream_server.server.metrics.log_record import AXES, Record, Writer
from stream_server.server.metrics.logged_numbers import LoggedNumbers, Partial, Reduce, is_metric, joined, note, united
from stream_server.server.metrics.monitor import VALIDATED
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks

_log = logging.getLogger(__name__)


class Gauge(Protocol):
    """Something that is measured whenever metrics are written, on every rank at once; it logs what it reads."""

    def __call__(self, metrics: "Metrics", /) -> None: ...


@dataclass(slots=True)
class OfBatch:
    """The values that were logged for one batch, and where the study stood then."""

    update: int
    sample: int
    wall_s: float
    numbers: dict[str, LoggedNumbers] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for rank 0."""
        parts = {name: number.partial() for name, number in self.numbers.items()}
        return {"update": self.update, "sample": self.sample, "wall_s": self.wall_s, "values": parts}


def _record_of(step: int, parts: Sequence[Mapping[str, Any]]) -> Record:
    """The record of what some ranks have logged for a batch."""
    axes = {name: parts[0][name] for name in ("update", "sample", "wall_s")}
    return Record(batch=step, **axes, is_log_point=False, values=united([part["values"] for part in parts]))


class Metrics:
    """Collects what user code and the loop log on this rank, and writes it together with the other ranks'.

    Main thread only, but for `log` and `log_histogram`. These and `log_figure` never communicate, so it does no harm
    when only some ranks call them. `write` and `write_reduced` are collective: every rank calls them at the same
    batches. A written number is the mean, or what else was asked for, of all that any rank logged under its name since
    the last `write`, or for a batch; a histogram holds the values of all ranks, and its mean, standard deviation,
    smallest and largest value are written as numbers beside it. What is kept over log points is the state of a rank.

    Leaving the `with` block closes the writers.

    Attributes:
        latest: the newest value of every name; rank 0 only.
        objects: the metrics objects that were logged and not yet taken, by name.
        gauges: what is measured before each `write`, once for a batch.
        warnings: a line for each writer of this rank that failed and writes no more.
    """

    def __init__(
        self,
        ranks: Ranks,
        writers: Sequence[Writer] = (),
        *,
        own: Writer | None = None,
        observer: Callable[[Record], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Log for the `writers` of rank 0, and for this rank's `own`, which gets its means before the reduction.

        The `observer` is called with each record for the writers; its exceptions propagate. The `progress` says at
        which update and sample a record stands.
        """
        self.latest: dict[str, float] = {}
        self.objects: dict[str, Any] = {}
        self.gauges: list[Gauge] = []
        self.warnings: list[str] = []
        self._on_full_disk: set[str] = set()
        self._ranks = ranks
        self._writers = list(writers)
        self._own = [] if own is None else [own]
        self._observer = observer
        self._progress = progress or Progress()
        self._knows_batches = progress is not None
        # The run that is continued here has measured at the batch at which it was saved.
        self._gauged_at = self._progress.batches or None
        self._written_at = self._progress.batches
        self._values: dict[str, LoggedNumbers] = {}
        self._noted: dict[str, list[float]] = {}
        self._of_batches: dict[int, OfBatch] = {}
        self._apart: dict[str, list[Any]] | None = None
        self._is_trial = False
        self._histograms: dict[str, Histogram] = {}
        self._figures: dict[str, bytes] = {}
        self._is_of_user: dict[str, bool] = {}
        self._kept: dict[str, Partial] = {}
        self._kept_as: dict[str, str | None] = {}
        self._lock = Lock()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def log(
        self,
        name: str,
        value: Any,
        *,
        step: int | None = None,
        reduce: Reduce = "mean",
        keep: bool = False,
        by_user: bool = False,
    ) -> None:
        """Note a number; a tensor of one element is read only when it is written, so a GPU is not waited for.

        Or a metrics object, of which the next log point has the value.

        With a `step` it is written as that of this batch, else as that of the next log point, which with `keep` is one
        of the whole run so far. What the user's code and the study itself log would become one curve: `by_user` tells
        them apart.

        Raises:
            TypeError: `value` is not one number, or `step` no whole one.
            ValueError: `name` is that of an axis, `reduce` is unknown or not that of the other numbers of this name,
                `step` is not between the last log point and now, `keep` is not always the same, or a metrics object has
                one of these.
            UserCodeError: the user's code and the study log it.
        """
        if name in AXES:
            raise ValueError(f"log({name!r}, …) takes another name: every record has {', '.join(AXES)} already")
        if not (is_object := not isinstance(value, float) and is_metric(value)):
            value = _one_number(name, value)
        elif step is not None or reduce != "mean" or keep:
            raise ValueError(f"log({name!r}, …) of a metrics object takes no step, reduce or keep: it has its own rule")
        if step is not None:
            self._check(name, step)
        kept_as = reduce if keep else None
        with self._lock:
            if self._apart is not None and step is None and reduce == "mean" and not keep:
                self._apart.setdefault(name, []).append(value)
            elif is_object and not self._is_trial:
                self.objects[name] = value
            elif not self._is_trial:
                numbers, placed = self._values if step is None else self._of_batch(step).numbers, self._placed(name)
                self._tell_apart(name, placed, by_user=by_user)
                if self._kept_as.setdefault(placed, kept_as) != kept_as or (keep and step is not None):
                    raise ValueError(
                        f"log({name!r}, …) takes no step with keep=True, and the same keep and reduce in the whole "
                        "run: give one of them another name"
                    )
                note(numbers, placed, value, reduce, keep=keep)

    def note(self, name: str, value: float) -> None:
        """Note a number of the study's own for the mean of the next log point, at each batch. Main thread.

        Raises:
            UserCodeError: the user's code logs it.
        """
        numbers = self._noted.get(name)
        if numbers is None:
            self._tell_apart(name, name, by_user=False)
            numbers = self._noted[name] = []
        numbers.append(value)

    @contextmanager
    def apart(self) -> Iterator[dict[str, list[Any]]]:
        """Within, numbers of which the mean is asked for belong to no log point: gives them, by name. Main thread.

        Others, histograms and figures are written under the names of validations.
        """
        by_name: dict[str, list[Any]] = {}
        self._apart = by_name
        try:
            yield by_name
        finally:
            self._apart = None

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Within, nothing that is logged is written or kept; `apart` gives its numbers all the same. Main thread."""
        self._is_trial = True
        try:
            yield
        finally:
            self._is_trial = False

    def log_histogram(self, name: str, values: Any, *, by_user: bool = False) -> None:
        """Note the distribution of an array of any shape.

        Raises:
            UserCodeError: the user's code and the study log it, or one of the numbers that are written beside it.
        """
        if hasattr(values, "detach"):
            values = values.detach().cpu()
        histogram = Histogram.of(values)
        with self._lock:
            if self._is_trial:
                return
            placed = self._placed(name)
            for key in histogram.statistics if histogram.num else ():
                self._tell_apart(name, f"{placed}/{key}", by_user=by_user)
            self._histograms.setdefault(placed, Histogram()).add(histogram)

    def log_figure(self, name: str, figure: Any) -> None:
        """Keep a picture of a Matplotlib figure, which the caller may then change or close; rank 0 only.

        On other ranks this does nothing.

        Raises:
            TypeError: `figure` has no `savefig`.
        """
        if not hasattr(figure, "savefig"):
            raise TypeError(f"log_figure({name!r}, …) takes a Matplotlib figure, but got a {type(figure).__name__}")
        if self._ranks.rank == 0 and not self._is_trial:
            image = io.BytesIO()
            figure.savefig(image, format="png")
            self._figures[self._placed(name)] = image.getvalue()

    def write(self, batch: int, wall_s: float) -> None:
        """Read the gauges, reduce over the ranks and write what was logged since the last time; collective."""
        if batch != self._gauged_at:
            for gauge in self.gauges:
                gauge(self)
            self._gauged_at = batch
        numbers, seen = self._take()
        plain = {name: histogram.to_json() for name, histogram in seen.items()}
        mine = {"values": numbers, "kept": self._kept, "histograms": plain}
        failpoint("metrics.before_write")
        per_rank = self._gather(mine)
        self._own = self._give(self._own, self._record(batch, wall_s, united([numbers])))
        self._written_at = batch
        if per_rank is None:
            return
        histograms: dict[str, Histogram] = {}
        for rank in per_rank:
            for name, of_rank in rank["histograms"].items():
                histograms.setdefault(name, Histogram()).add(Histogram.from_json(of_rank))
        logged = {name for rank in per_rank for name in rank["values"]}
        # A rank that has logged nothing since has its part in what is kept all the same.
        kept = ({name: part for name, part in rank["kept"].items() if name in logged} for rank in per_rank)
        values = united(rank["values"] | part for rank, part in zip(per_rank, kept, strict=True))
        for name, histogram in histograms.items():
            values.update({f"{name}/{key}": value for key, value in histogram.statistics.items()})
        figures, self._figures = self._figures, {}
        self._write_reduced(self._record(batch, wall_s, values, histograms, figures))
        failpoint("metrics.written")

    def write_reduced(self, batch: int, wall_s: float, values: Mapping[str, float]) -> None:
        """Write numbers that are the same on all ranks already, such as those of a validation; collective.

        Raises:
            UserCodeError: the user's code logs one of these names elsewhere.
        """
        for name in values:
            self._tell_apart(name, name, by_user=False)
        self._gather({})
        self._written_at = batch
        if self._ranks.rank == 0:
            self._write_reduced(replace(self._record(batch, wall_s, values), is_log_point=False))

    def flush(self) -> None:
        """Let the writers of this rank hand over what they have kept back."""
        self._own = [writer for writer in self._own if self._did(writer, writer.flush)]
        self._writers = [writer for writer in self._writers if self._did(writer, writer.flush)]

    def end(self, status: str, reason: str) -> None:
        """Tell the writers that have a method for it how the run ended; rank 0 only."""
        told = ((writer, getattr(writer, "end", lambda *_: None)) for writer in self._writers)
        self._writers = [writer for writer, end in told if self._did(writer, partial(end, status, reason))]

    def state_dict(self) -> dict[str, Partial]:
        """What this rank keeps over log points, by name."""
        with self._lock:
            return self._kept_with(self._values)

    def load_state_dict(self, state: Mapping[str, Partial]) -> None:
        self._kept = {name: [reduce, float(number), int(num)] for name, (reduce, number, num) in state.items()}
        self._kept_as |= {name: part[0] for name, part in self._kept.items()}

    @staticmethod
    def redealt(states: Sequence[Mapping[str, Partial]], rank: int, dealing: Any) -> dict[str, Partial]:
        """The kept values of a rank of `dealing`: the state of each rank that saved goes to one."""
        mine = states[rank :: dealing.num_ranks]
        names = dict.fromkeys(name for state in mine for name in state)
        return {name: joined([state[name] for state in mine if name in state]) for name in names}

    def close(self) -> None:
        """Close the writers; what was logged and never written is dropped."""
        writers, self._writers, self._own = [*self._own, *self._writers], [], []
        for writer in writers:
            _close(writer)

    def _placed(self, name: str) -> str:
        return name if self._apart is None or name.startswith(VALIDATED) else f"{VALIDATED}{name}"

    def _tell_apart(self, name: str, placed: str, *, by_user: bool) -> None:
        if self._is_of_user.setdefault(placed, by_user) != by_user:
            raise UserCodeError(
                f'self.log("{name}", …) would be mixed with {placed}, which the study logs by itself '
                f'(docs/reference/metrics.md lists such names). Write another name, such as "my/{name}"'
            )

    def _check(self, name: str, step: int) -> None:
        if not isinstance(step, int):
            raise TypeError(f"log({name!r}, …) takes a whole number of batches as step, but got {step!r}")
        now = self._progress.batches
        if self._knows_batches and not self._written_at <= step <= now:
            raise ValueError(
                f"log({name!r}, …) takes a step between {self._written_at}, at which metrics were written last, and "
                f"{now}, the number of batches now, but got {step}: write step=self.progress.batches"
            )

    def _of_batch(self, step: int) -> "OfBatch":
        if step not in self._of_batches:
            progress = self._progress
            self._of_batches[step] = OfBatch(progress.updates, progress.samples, progress.elapsed_s)
        return self._of_batches[step]

    def _gather(self, mine: Mapping[str, Any]) -> list[Any] | None:
        """All values that ranks have to be written, on rank 0; what was logged for batches is written first."""
        with self._lock:
            of_batches, self._of_batches = self._of_batches, {}
        plain = [(step, of_batches[step].to_json()) for step in sorted(of_batches)]
        for step, values in plain:
            self._own = self._give(self._own, _record_of(step, [values]))
        per_rank = self._ranks.gather({**mine, "of_batches": plain})
        if per_rank is None:
            return None
        parts: dict[int, list[Any]] = {}
        for rank in per_rank:
            for step, values in rank["of_batches"]:
                parts.setdefault(step, []).append(values)
        for step in sorted(parts):
            self._write_reduced(_record_of(step, parts[step]))
        return per_rank

    def _take(self) -> tuple[dict[str, Partial], dict[str, Histogram]]:
        """This rank's part of the numbers that were logged since the last time, and the histograms."""
        with self._lock:
            values, logged, self._values, self._histograms = self._values, self._histograms, {}, {}
        self._kept = self._kept_with(values)
        numbers: dict[str, Partial] = {
            name: ["mean", sum(each), len(each)] for name, each in self._noted.items() if each
        }
        for each in self._noted.values():
            each.clear()
        numbers |= {name: self._kept[name] if value.kept else value.partial() for name, value in values.items()}
        return numbers, {name: histogram for name, histogram in logged.items() if histogram.num}

    def _kept_with(self, values: Mapping[str, LoggedNumbers]) -> dict[str, Partial]:
        return self._kept | {name: it.partial(self._kept.get(name)) for name, it in values.items() if it.kept}

    def _record(
        self,
        batch: int,
        wall_s: float,
        values: Mapping[str, float],
        histograms: Mapping[str, Histogram] = MappingProxyType({}),
        figures: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Record:
        return Record(
            batch=batch,
            update=self._progress.updates,
            sample=self._progress.samples,
            wall_s=wall_s,
            values=values,
            histograms=histograms,
            figures=figures,
        )

    def _write_reduced(self, record: Record) -> None:
        self.latest.update(record.values)
        self._writers = self._give(self._writers, record)
        if self._observer is not None and (record.values or record.histograms or record.figures):
            self._observer(record)

    def _give(self, writers: list[Writer], record: Record) -> list[Writer]:
        """Give each of the writers a record that it may change; returns the ones that did not fail."""
        if not (record.values or record.histograms or record.figures):
            return writers
        return [
            each
            for each in writers
            if self._did(each, partial(each.write, replace(record, values=dict(record.values))))
        ]

    def _did(self, writer: Writer, action: Callable[[], None]) -> bool:
        # A full disk, or a server of metrics that is away, must not end a training that has gone on for days.
        try:
            action()
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and error.errno in LOST:
                # It has room again in a while: the file then gets what is left in its buffer.
                self._note_full(writer, error)
                return True
            self.warnings.append(f"{type(writer).__name__} writes no more metrics: {error}")
            _log.warning(self.warnings[-1], exc_info=_trace(error))
            with suppress(Exception, SystemExit):
                writer.close()
            return False
        return True

    def _note_full(self, writer: Writer, error: OSError) -> None:
        name = type(writer).__name__
        if name not in self._on_full_disk:
            self._on_full_disk.add(name)
            self.warnings.append(f"{name} may lose metrics while the disk takes none: {error}")
            _log.warning(self.warnings[-1])


def _close(writer: Writer) -> None:
    try:
        writer.close()
    except (Exception, SystemExit) as error:
        _log.warning("%s could not be closed: %s", type(writer).__name__, error, exc_info=_trace(error))


def _trace(error: BaseException) -> BaseException | None:
    """The error, if its message alone does not tell the cause."""
    return None if isinstance(error, OSError) else error


def _one_number(name: str, value: Any) -> Any:
    if hasattr(value, "detach"):
        if value.numel() == 1:
            return value.detach().clone()
    elif not isinstance(value, str):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    kind = f"an array of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
    raise TypeError(f"log({name!r}, …) takes one number, but got {kind}; use log_histogram for many")
