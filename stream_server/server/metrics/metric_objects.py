"""Metrics that collect over many batches, such as torchmetrics."""

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from stream_server.errors import UserCodeError
from stream_server.server.metrics.logged_numbers import is_metric
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.ranks.communicator import Ranks
from stream_server.user_code import call_user

TRAINED = "train/"
TOLERANCE = 1e-3

_WRAPPERS = ("module", "_orig_mod")


class MetricObjects:
    """The metrics objects that are attributes of a server, or of a module that is: what they saw of one validation set.

    A metrics object is known by its `update`, `compute` and `reset`. Only those that `validation_step` updated, on
    some rank, are computed, and reset afterwards; one that counts its updates in `update_count` may thus serve the
    training instead, and is refused if it is to serve both. All others stay the user's. They bring the ranks together
    themselves in `compute`, which torchmetrics does through torch.distributed; every rank calls it, in the same order.
    Main thread; all but `name` is collective.
    """

    def __init__(self, server: Any, ranks: Ranks) -> None:
        self._owner = type(server).__name__
        self._ranks = ranks
        self._metrics = dict(find_metrics(server))
        self._before = {name: _num_updates(metric) for name, metric in self._metrics.items()}
        self._given: dict[str, str] = {}

    def name(self, key: str, metric: Any) -> None:
        """User code returned or logged this metric under this name, which its value will have.

        Raises:
            UserCodeError: it is no attribute, so that ranks without a batch could not find it.
        """
        own = next((name for name, known in self._metrics.items() if known is metric), None)
        if own is None:
            raise UserCodeError(
                f"{self._owner} returned or logged the metric {key!r}, which is no attribute of the server or of its "
                "model: make it in prepare_training_attributes, as self.NAME = …"
            )
        self._given[own] = key

    def take(self) -> dict[str, float]:
        """The values over all ranks, by the names of the attributes or those that were given; resets the metrics.

        Raises:
            UserCodeError: a metric raised, or its value is no number, or another one on each rank.
        """
        values: dict[str, float] = {}
        for own, name in self._in_use().items():
            values |= _numbers(f"{self._owner}.{own}.compute", name, self._compute(own))
            call_user(f"{self._owner}.{own}.reset", self._metrics[own].reset)
            self._before[own] = _num_updates(self._metrics[own])
        return self._agree(values) if values else values

    def drop(self) -> bool:
        """Reset what was updated without asking for values; whether there was anything."""
        in_use = self._in_use()
        for own in in_use:
            call_user(f"{self._owner}.{own}.reset", self._metrics[own].reset)
        return bool(in_use)

    def _in_use(self) -> dict[str, str]:
        """The metrics that some rank updated, and the names of their values; the same on all ranks.

        Raises:
            UserCodeError: one of them had been updated before this validation, too.
        """
        if not self._metrics:
            return {}
        mine = {
            own: (self._given.get(own, own), bool(self._before[own])) for own in self._metrics if self._is_used(own)
        }
        gathered = self._ranks.gather(mine)
        merged = None if gathered is None else [item for of_rank in gathered for item in of_rank.items()]
        named: dict[str, str] = {}
        for own, (name, is_shared) in self._ranks.broadcast(merged):
            if is_shared:
                raise UserCodeError(
                    f"{self._owner}.{own} holds updates of the training when validation_step updates it, so that its "
                    "value would be of both: make one object for each, as self.train_metric and self.val_metric, and "
                    "do not update that of the training in a method which validation_step calls"
                )
            named[own] = name
        return {own: named[own] for own in self._metrics if own in named}

    def _is_used(self, own: str) -> bool:
        """Whether this rank asks for the value of a metric."""
        num = _num_updates(self._metrics[own])
        return num is None or num != self._before[own]

    def _compute(self, own: str) -> Any:
        with warnings.catch_warnings():
            # On a rank that had no batch for it.
            warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
            return call_user(f"{self._owner}.{own}.compute", self._metrics[own].compute)

    def _agree(self, values: dict[str, float]) -> dict[str, float]:
        gathered = self._ranks.gather(values)
        different = None
        if gathered is not None:
            different = next((name for name in values if not _same([of_rank[name] for of_rank in gathered])), None)
        first, different = self._ranks.broadcast([values, different])
        if different is not None:
            raise UserCodeError(
                f"the metric {different!r} of {self._owner} has another value on each rank: its compute must bring the "
                "ranks together, which torchmetrics does in a TorchServer alone; return numbers instead, whose means "
                "are taken for you"
            )
        return dict(first)


class TrainedMetrics(MetricObjects):
    """The gauge of those that user code has logged on some rank since the last log point; collective."""

    def __init__(self, server: Any, ranks: Ranks) -> None:
        super().__init__(server, ranks)
        self._before = dict.fromkeys(self._metrics, 0)

    def __call__(self, metrics: Metrics, /) -> None:
        self._given.clear()
        for name in list(metrics.objects):
            self.name(f"{TRAINED}{name.removeprefix(TRAINED)}", metrics.objects.pop(name))
        for name, value in self.take().items():
            # The user's numbers are means, which are refused under such a name.
            metrics.log(name, value, reduce="last", by_user=True)

    def _is_used(self, own: str) -> bool:
        return own in self._given


def find_metrics(server: Any) -> Iterator[tuple[str, Any]]:
    """The metrics objects of a server by the name of the attribute, or its path in a module, without wrappers.

    Raises:
        UserCodeError: two have the same name.
    """
    metrics: dict[str, Any] = {}
    for attribute, value in vars(server).items():
        for path, metric in _metrics_in(attribute, value):
            if path in metrics and metrics[path] is not metric:
                raise UserCodeError(f"{type(server).__name__} and its model have two metrics {path!r}: rename one")
            if not any(metric is known for known in metrics.values()):
                metrics[path] = metric
                yield path, metric


def _metrics_in(attribute: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_metric(value):
        yield attribute, value
    elif hasattr(value, "named_modules"):
        inside = ""
        for path, module in value.named_modules():
            # A collection reports the metrics in it.
            if is_metric(module) and not (inside and path.startswith(inside)):
                inside = f"{path}."
                yield ".".join(part for part in path.split(".") if part not in _WRAPPERS), module


def _num_updates(metric: Any) -> int | None:
    """Number of updates since its reset; None if nobody knows."""
    members = metric.modules() if hasattr(metric, "modules") else [metric]
    counts = [member.update_count for member in members if hasattr(member, "update_count")]
    return sum(counts) if counts else None


def _numbers(where: str, name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        numbers = (_numbers(where, f"{name}/{key}", inner) for key, inner in value.items())
        return {key: number for inner in numbers for key, number in inner.items()}
    try:
        return {name: float(value)}
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserCodeError(f"{where} must give single numbers: {error}") from error


def _same(values: list[float]) -> bool:
    if math.isnan(values[0]):
        return all(math.isnan(value) for value in values)
    return all(math.isclose(value, values[0], rel_tol=TOLERANCE) for value in values)
