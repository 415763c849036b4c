"""Ends a training that does not get better any more."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stream_server.errors import UserCodeError
from stream_server.server.metrics.log_record import Record
from stream_server.server.metrics.monitor import Monitor
from stream_server.server.user.callbacks import Callback

if TYPE_CHECKING:
    from stream_server.config.training_sections import EarlyStop


class EarlyStopping(Callback):
    """Asks for a stop once a logged value has not improved for `patience` checks, as `training.early_stop` says.

    A value of the validation, "val/…", is checked after each validation that has it, once at each batch. Any other one
    is checked where it is written: then `on_record` observes the metrics of rank 0. A value that is not finite is no
    improvement.
    How the stop reaches the simulations is told in `server/reception/simulation_stop.py`.
    """

    def __init__(self, settings: "EarlyStop", *, stop: Callable[[str], None]) -> None:
        self._patience = settings.patience
        self._min_delta = settings.min_delta
        self._monitor = Monitor(
            name=settings.monitor, mode=settings.mode, key="training.early_stop.monitor", patience=settings.patience
        )
        self._stop = stop
        self._best: float | None = None
        self._best_batch = 0
        self._batch = 0
        self._num_checks = 0
        self._num_missing = 0

    @property
    def warnings(self) -> list[str]:
        """Why the value was not there."""
        return self._monitor.warnings

    @property
    def observes_records(self) -> bool:
        """Whether the metrics must tell `on_record` what they write."""
        return not self._monitor.is_validated

    def on_train_start(self, server: Any) -> None:
        """The study may have been left between the last check and its end."""
        self._judge()

    def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
        batch = server.progress.batches
        # Where all sets are due right after some of them, the values of these come twice.
        if self._monitor.is_validated and batch != self._batch:
            value = self._monitor.of_validation(metrics, server)
            if value is not None:
                self._batch = batch
                self._check(value, batch)

    def on_train_end(self, server: Any) -> None:
        self._monitor.end(server)

    def on_record(self, record: Record) -> None:
        """Check what is written at a log point.

        Raises:
            ConfigError: the monitored value was in none of the first log points.
        """
        value = record.values.get(self._monitor.name)
        if value is not None:
            self._check(value, record.batch)
        elif self._best is None and record.is_log_point:
            self._num_missing += 1
            if self._num_missing == self._patience:
                raise self._monitor.missing("a value that is logged", record.values)

    def state_dict(self) -> dict[str, Any]:
        return {
            "monitor": self._monitor.name,
            "mode": self._monitor.mode,
            "best": self._best,
            "best_batch": self._best_batch,
            "batch": self._batch,
            "num_checks": self._num_checks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, unless it belongs to another monitor."""
        if (state["monitor"], state["mode"]) == (self._monitor.name, self._monitor.mode):
            self._best, self._best_batch = state["best"], state["best_batch"]
            self._num_checks, self._batch = state["num_checks"], state.get("batch", 0)
            self._monitor.first_batch = None if self._best is None else self._best_batch

    def _check(self, value: float, batch: int) -> None:
        is_first = self._best is None and math.isfinite(value)
        if is_first or (self._best is not None and self._monitor.is_better(value, self._best, self._min_delta)):
            self._best, self._best_batch, self._num_checks = value, batch, 0
        else:
            self._num_checks += 1
        self._judge()

    def _judge(self) -> None:
        if self._num_checks < self._patience:
            return
        if self._best is None:
            raise UserCodeError(
                f"{self._monitor.name} was not finite in {self._num_checks} {self._checks}, so that "
                "training.early_stop has nothing to go by"
            )
        by = f" by {self._min_delta:g}" if self._min_delta else ""
        best = f"best {self._best:g} after batch {self._best_batch}"
        improved = "fallen" if self._monitor.mode == "min" else "grown"
        self._stop(
            f"training converged: {self._monitor.name} has not {improved}{by} for {self._num_checks} {self._checks} "
            f"({best}, mode: {self._monitor.mode})"
        )

    @property
    def _checks(self) -> str:
        return "validations" if self._monitor.is_validated else "log points"
