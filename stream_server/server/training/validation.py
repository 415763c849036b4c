"""How good the model is on samples it never trains on."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import count, islice
from typing import Any, Protocol

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.ranks import Ranks
from stream_server.server.simulation_data import SimulationBatch
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.means import Means
from stream_server.server.training.phases import Phases
from stream_server.server.training.validation_batches import check_loader, num_samples, slices, take

LOSS = "loss"

Item = tuple[Any, int]


class Evaluates(Protocol):
    """The part of the step that validation needs."""

    def evaluating(self) -> AbstractContextManager[None]: ...

    def place(self, data: Any) -> Any: ...


class Validation:
    """Runs the user's `validation_step` over the whole validation set and keeps the history.

    Main thread, collective: every rank calls `run` after the same batches. The set is what the user's
    `val_dataloader` returns, of which rank r of R takes the items r, r + R, …; if that is None, the complete
    held-out simulations, of which every rank has its own samples (`held_out` gives them).
    """

    def __init__(
        self,
        server: Any,
        ranks: Ranks,
        callbacks: Callbacks,
        step: Evaluates,
        *,
        held_out: Callable[[], SimulationBatch | None],
        batch_size: int,
        every_batches: int | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.history: list[dict[str, Any]] = []
        self._server = server
        self._ranks = ranks
        self._callbacks = callbacks
        self._step = step
        self._held_out = held_out
        self._batch_size = batch_size
        self._every_batches = every_batches
        self._phases = phases or Phases()
        self._loaders: Mapping[str, Any] | None = None
        self._asked = False

    @property
    def best(self) -> dict[str, Any]:
        """The entry of the history with the smallest loss, the earliest if there are several; or empty."""
        finite = [entry for entry in self.history if math.isfinite(entry[LOSS])]
        return dict(min(finite, key=lambda entry: entry[LOSS])) if finite else {}

    def is_due(self, batch: int) -> bool:
        """Whether the interval of study.json asks for a validation after this batch."""
        return self._every_batches is not None and batch > 0 and batch % self._every_batches == 0

    def is_done(self, batch: int) -> bool:
        """Whether this very batch has been validated, so that the end of the training needs no other one."""
        return bool(self.history) and self.history[-1]["batch"] == batch

    def run(self, batch: int) -> dict[str, float]:
        """Validate now, after `batch` batches: the exact weighted means, "loss" among them, the same on every rank.

        Empty, without a call of user code, while no held-out simulation is complete.

        Raises:
            UserCodeError: `val_dataloader` or `validation_step` raised or returned something unusable.
        """
        with self._phases.measure("validation"):
            loaders = self._loaders_of_user()
            held_out = self._held_out() if loaders is None else None
            if loaders is None and not self._anywhere(held_out):
                return {}
            self._callbacks.on_validation_start()
            local = Means()
            with self._step.evaluating():
                for name, batches in self._sets(loaders, held_out):
                    self._evaluate(name, batches, local)
            metrics = self._reduce(local)
            self.history.append({"batch": batch, LOSS: metrics[LOSS]})
            self._callbacks.on_validation_end(metrics)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"history": [dict(entry) for entry in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = [dict(entry) for entry in state["history"]]

    def _loaders_of_user(self) -> Mapping[str, Any] | None:
        if not self._asked:
            loaders = self._call("val_dataloader")
            if loaders is not None and not isinstance(loaders, Mapping):
                loaders = {"": loaders}
            for name, loader in (loaders or {}).items():
                check_loader(name, loader, self._ranks.size)
            self._loaders, self._asked = loaders, True
        return self._loaders

    def _anywhere(self, held_out: SimulationBatch | None) -> bool:
        num = 0 if held_out is None else len(held_out)
        return bool(self._ranks.all_reduce(np.array([float(num)]))[0])

    def _sets(
        self, loaders: Mapping[str, Any] | None, held_out: SimulationBatch | None
    ) -> Iterator[tuple[str, Iterator[Item]]]:
        """The name of each set, and its batches that this rank has to evaluate; the same names on all ranks."""
        if loaders is None:
            yield "", self._held_out_batches(held_out)
        else:
            yield from ((name, self._batches_of(loader)) for name, loader in loaders.items())

    def _batches_of(self, loader: Any) -> Iterator[Item]:
        for batch in islice(loader, self._ranks.rank, None, self._ranks.size):
            yield self._step.place(self._server.collate.convert(batch)), num_samples(batch)

    def _held_out_batches(self, held_out: SimulationBatch | None) -> Iterator[Item]:
        for rows in slices(0 if held_out is None else len(held_out), self._batch_size):
            assert held_out is not None
            raw = take(held_out, rows)
            data = self._server.collate.convert(self._call("process_batch", raw, self._server.config))
            yield self._step.place(data), len(raw)

    def _evaluate(self, name: str, batches: Iterator[Item], means: Means) -> None:
        """Add one set to `means`. Ranks whose batches have ended join the reductions of the others."""
        for index in count():
            batch, num = next(batches, (None, 0))
            sizes = self._sizes(num)
            if not any(sizes):
                return
            with self._server.union_mean.step(sizes):
                if not num:
                    continue
                returned = self._call("validation_step", batch, index)
            for key, value in self._values(returned).items():
                means.add(key, value, num)
                if name:
                    means.add(f"{name}/{key}", value, num)

    def _sizes(self, num: int) -> list[int]:
        """How many samples each rank evaluates next."""
        sizes = np.zeros(self._ranks.size)
        sizes[self._ranks.rank] = num
        return [int(size) for size in self._ranks.all_reduce(sizes)]

    def _values(self, returned: Any) -> dict[str, float]:
        values = returned if isinstance(returned, Mapping) else {LOSS: returned}
        where = f"{type(self._server).__name__}.validation_step"
        if LOSS not in values or values[LOSS] is None:
            found = f"the names {list(values)}" if isinstance(returned, Mapping) else "None"
            raise UserCodeError(f'{where} must return the loss, or a dict with "loss" in it, but returned {found}')
        try:
            return {str(name): float(value) for name, value in values.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserCodeError(f"{where} must return single numbers: {error}") from error

    def _reduce(self, local: Means) -> dict[str, float]:
        gathered = self._ranks.gather(local.to_json())
        values = None if gathered is None else Means.merged(gathered).values()
        means: dict[str, float] = self._ranks.broadcast(values)
        if not means:
            raise UserCodeError(f"{type(self._server).__name__}.val_dataloader gave no batch to any rank")
        return means

    def _call(self, method: str, *arguments: Any) -> Any:
        return call_user(f"{type(self._server).__name__}.{method}", getattr(self._server, method), *arguments)
