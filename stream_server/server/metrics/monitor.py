"""A logged value that says how well the training goes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stream_server.errors import ConfigError

VALIDATED = "val/"
ROLLED_OUT = "val/rollout/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Monitor:
    """A logged name, and whether its values are to become small or large; `key` says where study.json names it."""

    name: str
    mode: Literal["min", "max"]
    key: str

    @property
    def is_validated(self) -> bool:
        return self.name.startswith(VALIDATED)

    def of_validation(self, metrics: Mapping[str, float]) -> float | None:
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
                return None
            raise self.missing("a value of the validation", [f"{VALIDATED}{name}" for name in metrics])
        return metrics[self.name.removeprefix(VALIDATED)]

    def is_better(self, value: float, other: float, min_delta: float = 0.0) -> bool:
        """Whether a value is better than another one by more than `min_delta`; NaN never is."""
        return value < other - min_delta if self.mode == "min" else value > other + min_delta

    def missing(self, what: str, names: Iterable[str]) -> ConfigError:
        """The error that says which names there are instead."""
        known = ", ".join(f'"{name}"' for name in names) or "nothing"
        return ConfigError(f'{self.key} must name {what}, but is "{self.name}"; there is {known}')
