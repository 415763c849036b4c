"""One validation: all sets gone through on all ranks in lockstep."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint
from stream_server.server.metrics.logged_numbers import is_metric
from stream_server.server.metrics.metric_objects import MetricObjects
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.monitor import VALIDATED
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.validation.validation_batches import HeldOut, Observe, ValidationSet
from stream_server.server.training.validation.validation_record import ValidationRecord
from stream_server.server.user.components import loader_name, third_argument
from stream_server.server.user.framework import Step
from stream_server.server.user.losses import Array, loss_of
from stream_server.user_code import call_user

LOSS = "loss"
VALIDATION_LOSS = "validation_loss"


class ValidationPass:
    """Calls `validation_step` on every batch of every set, and takes the means over all samples.

    Main thread, collective. The ranks agree before each batch, so that a rank whose batches have ended joins the
    reductions of the others, and that all leave at the same batch once some rank must. What `validation_step` logs is
    a value like those that it returns, and no part of the curves of the training. `left` then says where, in plain
    values that are the same on all ranks; with it another pass over the same sets and with the same model goes on from
    there. `observe` gets the loss of each held-out sample; the mean of its batch where that is all that is known.
    Where these are not all sets, so that it is not `is_complete`, only the values of each are taken, none if they are
    empty.
    """

    def __init__(
        self,
        server: Any,
        ranks: Ranks,
        step: Step,
        metrics: Metrics,
        sets: Sequence[ValidationSet],
        *,
        must_leave: Callable[[], bool],
        left: Mapping[str, Any] | None = None,
        record: ValidationRecord | None = None,
        observe: Observe | None = None,
        is_complete: bool = True,
    ) -> None:
        self.left: dict[str, Any] | None = None
        self._server = server
        self._ranks = ranks
        self._step = step
        self._logging = metrics
        self._sets = sets
        self._must_leave = must_leave
        self._record = record
        self._observe = observe
        self._is_complete = is_complete
        self._third = third_argument(server.validation_step)
        self._metrics = MetricObjects(server, ranks)
        self._start: tuple[int, int] = (0, 0) if left is None else (left["set"], left["batch"])
        # One rank alone remembers what all have added up.
        self._means = Means.merged([left["means"]] if left is not None and ranks.rank == 0 else [])
        self._values: dict[str, float] = {}

    def run(self) -> dict[str, float] | None:
        """The means by name, "loss" among them, and the values of metrics objects; None if it was left half-way.

        Raises:
            UserCodeError: `validation_step` or a metric raised, or gave something unusable.
        """
        with self._step.evaluating():
            first, batch = self._start
            for number in range(first, len(self._sets)):
                validation_set = self._sets[number]
                stopped_at = self._evaluate(validation_set, batch if number == first else 0)
                if stopped_at is not None:
                    self._leave(number, stopped_at)
                    return None
                self._take_metrics(validation_set.name)
        means = self._reduced().values()
        if not means and self._is_complete:
            raise UserCodeError(f"{loader_name(self._server)} gave no batch to any rank")
        twice = next((name for name in self._values if name in means), None)
        if twice is not None:
            raise UserCodeError(
                f"{self._where} returned a number {twice!r}, and a metric has this name too: rename one"
            )
        return means | self._values

    @property
    def _where(self) -> str:
        return f"{type(self._server).__name__}.validation_step"

    def _evaluate(self, validation_set: ValidationSet, start: int) -> int | None:
        """Add a set to the means; gives the batch at which all ranks left it, None if it is done."""
        batches, index = validation_set.batches(start), start
        while True:
            data, num = next(batches, (None, 0))
            sizes, leave = self._agree(num)
            if leave or not any(sizes):
                return index if leave else None
            failpoint("validation.before_batch")
            placed = self._step.to_device(data) if num else None
            # Whoever has no batch of its own takes part in what the others need of the model, to the end.
            with self._step.together():
                self._evaluate_batch(validation_set, index, placed, num, sizes)
            index += 1

    def _evaluate_batch(
        self, validation_set: ValidationSet, index: int, placed: Any, num: int, sizes: Sequence[int]
    ) -> None:
        # As in Melissa, a third argument of this name is the number of batches that are trained.
        third = self._server.progress.batches if self._third == ["batch_idx"] else validation_set.name
        arguments = (placed, index, *([third] if self._third else []))
        with self._server.union_mean.step(sizes), self._logging.apart() as logged:
            returned = call_user(self._where, self._server.validation_step, *arguments) if num else None
        if num:
            mean, losses = self._add(validation_set.name, returned, num)
            self._add_logged(validation_set.name, logged, returned, num)
            raw = None if validation_set.raw is None else validation_set.raw(index)
            if self._record is not None and raw is not None:
                self._keep(self._record, raw, placed, losses)
            if self._observe is not None and raw is not None:
                self._observe(VALIDATION_LOSS, raw.simulation_ids, np.full(num, mean) if losses is None else losses)

    def _keep(self, record: ValidationRecord, raw: HeldOut, placed: Any, losses: Array | None) -> None:
        """Record losses and predictions, which leave no trace in the random numbers of the training."""
        if not record.predicts:
            record.observe(raw, placed, losses)
            return
        state = self._step.random_state()
        try:
            record.observe(raw, placed, losses)
        finally:
            self._step.load_random_state(state)

    def _agree(self, num: int) -> tuple[list[int], bool]:
        """How many samples each rank evaluates next, and whether some rank must leave."""
        said = np.zeros(self._ranks.size + 1)
        said[self._ranks.rank] = num
        said[-1] = self._must_leave()
        *sizes, leave = self._ranks.all_reduce(said)
        return [int(size) for size in sizes], leave > 0

    def _add(self, name: str, returned: Any, num: int) -> tuple[float, Array | None]:
        """Add what `validation_step` returned to the means; gives the loss, and that of each sample, if it is known."""
        values = returned if isinstance(returned, Mapping) else {LOSS: returned}
        if LOSS not in values or values[LOSS] is None:
            found = f"the names {list(values)}" if isinstance(returned, Mapping) else "None"
            raise UserCodeError(
                f'{self._where} must return the loss, or a dict with "loss" in it, but returned {found}'
            )
        mean, losses = math.nan, None
        for key, value in values.items():
            if is_metric(value):
                self._metrics.name(str(key), value)
                continue
            number, of_samples = loss_of(value, num, f'{self._where} returned "{key}"')
            mean, losses = (number, of_samples) if key == LOSS else (mean, losses)
            self._add_number(name, str(key), number, num)
        return mean, losses

    def _add_logged(self, name: str, logged: Mapping[str, list[Any]], returned: Any, num: int) -> None:
        """Add what was logged in `validation_step` to the means, unless it returned a value of the same name."""
        known = returned if isinstance(returned, Mapping) else (LOSS,)
        for key, values in logged.items():
            own = key.removeprefix(VALIDATED)
            if is_metric(values[-1]):
                self._metrics.name(own, values[-1])
            elif own not in known:
                self._add_number(name, own, sum(float(it) for it in values) / len(values), num)

    def _add_number(self, name: str, key: str, number: float, num: int) -> None:
        if self._is_complete:
            self._means.add(key, number, num)
        if name:
            self._means.add(f"{name}/{key}", number, num)

    def _take_metrics(self, name: str) -> None:
        for key, value in self._metrics.take().items():
            self._values[f"{name}/{key}" if name else key] = value

    def _leave(self, number: int, batch: int) -> None:
        means = self._reduced()
        # What metrics objects have collected is in no checkpoint.
        has_metrics = self._metrics.drop() or bool(self._values)
        self.left = None if has_metrics else {"set": number, "batch": batch, "means": means.to_json()}

    def _reduced(self) -> "Means":
        """The means of all ranks."""
        gathered = self._ranks.gather(self._means.to_json())
        return Means.merged([self._ranks.broadcast(None if gathered is None else Means.merged(gathered).to_json())])


@dataclass(slots=True)
class Means:
    """Weighted means under construction: of each name the products value × weight, and the weights."""

    products: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float) -> None:
        self.products.setdefault(name, []).append(value * weight)
        self.weights[name] = self.weights.get(name, 0.0) + weight

    def to_json(self) -> dict[str, Any]:
        return {name: [products, self.weights[name]] for name, products in self.products.items()}

    @classmethod
    def merged(cls, per_rank: Iterable[Mapping[str, Any]]) -> Self:
        means = cls()
        for of_rank in per_rank:
            for name, (products, weight) in of_rank.items():
                means.products.setdefault(name, []).extend(products)
                means.weights[name] = means.weights.get(name, 0.0) + weight
        return means

    def values(self) -> dict[str, float]:
        """The means. Their sums are rounded once, so they do not depend on how batches are dealt to the ranks."""
        return {name: _exact_sum(products) / self.weights[name] for name, products in self.products.items()}


def _exact_sum(values: list[float]) -> float:
    # fsum refuses infinities of both signs and sums that overflow on the way; there is no exact sum then.
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
