"""A logged value that says how well the training goes."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stream_server.errors import ConfigError
from stream_server.wording import counted

VALIDATED = "val/"
ROLLED_OUT = "val/rollout/"

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Monitor:
    """A logged name, and whether its values are to become small or large; `key` says where study.json names it.

    It is a warning on rank 0 that as many validations as its `patience`, or all before the end, do not have it.
    `first_batch` is that of the first one that has it.
    """

    name: str
    mode: Literal["min", "max"]
    key: str
    patience: int = 10
    first_batch: int | None = None
    warnings: list[str] = field(default_factory=list)
    _num_missing: int = 0

    @property
    def is_validated(self) -> bool:
        return self.name.startswith(VALIDATED)

    def of_validation(self, metrics: Mapping[str, float], server: Any) -> float | None:
        """Its value among those of a validation, which go without the "val/".

        None for one of the rollouts while there are no values of these: no held-out simulation is complete. None also
        where some sets alone were validated, so that there is no loss of all.

        Raises:
            ConfigError: it is not among them.
        """
        if self.name.startswith(ROLLED_OUT) and not any(
            f"{VALIDATED}{name}".startswith(ROLLED_OUT) for name in metrics
        ):
            return None
        if not self.is_validated or self.name.removeprefix(VALIDATED) not in metrics:
            if self.is_validated and "loss" not in metrics:
                self._num_missing += self.first_batch is None
                if self._num_missing == self.patience:
                    self._warn(server)
                return None
            raise self.missing("a value of the validation", [f"{VALIDATED}{name}" for name in metrics])
        if self.first_batch is None:
            self.first_batch = server.progress.batches
        return metrics[self.name.removeprefix(VALIDATED)]

    def end(self, server: Any) -> None:
        """See whether a validation before the end of the training had it."""
        if self._num_missing and self.first_batch in (None, server.progress.batches):
            self._warn(server)

    def _warn(self, server: Any) -> None:
        if server.rank == 0 and not self.warnings:
            self.warnings.append(
                f"{self.key}: no {self.name} in {counted(self._num_missing, 'validation')}, each of some sets alone. "
                "What is of all sets is known where all are due: name the value of a set, such as val/SET/loss, or "
                "choose other validation.sets"
            )
            _log.warning("%s", self.warnings[-1])

    def is_better(self, value: float, other: float, min_delta: float = 0.0) -> bool:
        """Whether a value is better than another one by more than `min_delta`; NaN never is."""
        return value < other - min_delta if self.mode == "min" else value > other + min_delta

    def missing(self, what: str, names: Iterable[str]) -> ConfigError:
        """The error that says which names there are instead."""
        known = ", ".join(f'"{name}"' for name in names) or "nothing"
        return ConfigError(f'{self.key} must name {what}, but is "{self.name}"; there is {known}')
