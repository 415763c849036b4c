"""Keeps the models that did best in a validation."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.server.checkpoint.best_folder import BestFolder
from stream_server.server.checkpoint.part import Part
from stream_server.server.training.callbacks import Callback
from stream_server.server.training.monitor import Monitor
from stream_server.server.training.phases import Phases
from stream_server.server.training.step import Step

if TYPE_CHECKING:
    from stream_server.config.sections import Checkpoint

_log = logging.getLogger(__name__)


class BestModels(Callback):
    """After each validation: keeps the model if it is among the `checkpoint.keep_best` best by `checkpoint.monitor`.

    Of equal ones the earlier stay. `capture` gives the files of the model as it is now, on rank 0, which writes them in
    the main thread. A failure costs nothing but this model.

    After a restart those that are newer than the checkpoint are removed, for their batches are trained again.
    """

    def __init__(
        self,
        folder: Path,
        step: Step,
        settings: "Checkpoint",
        *,
        capture: Callable[[], Sequence[Part]],
        phases: Phases | None = None,
    ) -> None:
        self._folder = BestFolder(folder)
        self._step = step
        self._num = settings.keep_best
        self._monitor = Monitor(name=settings.monitor, mode=settings.mode, key="checkpoint.monitor")
        self._capture = capture
        self._phases = phases or Phases()
        self._kept: list[dict[str, Any]] = []

    @property
    def best(self) -> list[dict[str, Any]]:
        """The kept models, the best first: batch, value, and the name of the folder. Rank 0."""
        return [
            {**it, "monitor": self._monitor.name, "folder": self._folder.path(it["batch"]).name} for it in self._kept
        ]

    def on_train_start(self, server: Any) -> None:
        if server.rank == 0:
            there = [it for it in self._kept if self._folder.path(it["batch"]).is_dir()]
            self._kept = there[: self._num]
            self._prune()

    def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
        value = self._monitor.of_validation(metrics)
        # On all ranks, whether or not this one writes.
        self._step.unite()
        if server.rank == 0 and math.isfinite(value):
            with self._phases.measure("checkpoint"):
                self._consider(server.progress.batches, value, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"monitor": self._monitor.name, "mode": self._monitor.mode, "kept": [dict(it) for it in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Values of another monitor cannot be compared: those models go."""
        same = (state["monitor"], state["mode"]) == (self._monitor.name, self._monitor.mode)
        self._kept = [dict(it) for it in state["kept"]] if same else []

    def _consider(self, batch: int, value: float, metrics: Mapping[str, float]) -> None:
        others = [it for it in self._kept if it["batch"] != batch]
        place = next((i for i, it in enumerate(others) if self._monitor.is_better(value, it["value"])), len(others))
        if place >= self._num:
            return
        try:
            self._write(batch, value, metrics)
        except OSError as error:
            _log.warning("the model after batch %d is among the best, but cannot be written: %s", batch, error)
            self._kept = others
        else:
            self._kept = [*others[:place], {"batch": batch, "value": value}, *others[place:]][: self._num]
        self._prune()

    def _write(self, batch: int, value: float, metrics: Mapping[str, float]) -> None:
        facts = {
            "batch": batch,
            "monitor": self._monitor.name,
            "value": value,
            "metrics": {name: number if math.isfinite(number) else None for name, number in metrics.items()},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._folder.write(batch, self._capture(), facts)

    def _prune(self) -> None:
        self._folder.keep_only([it["batch"] for it in self._kept])
