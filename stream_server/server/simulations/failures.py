"""The failed attempts of simulations, as the report tells them. Rank 0; pure."""

from collections.abc import Container, Mapping
from typing import Any

Failure = dict[str, object]


class FailedAttempts:
    """The failures, each with the `id`, the number of `attempts`, the `reason` and the `log`.

    `given_up` are the simulations that have no attempt left; `later`, by id, attempts that failed after they had sent
    every time step; `retried`, by id, the newest failure that another attempt followed.
    """

    def __init__(self) -> None:
        self.given_up: list[Failure] = []
        self.retried: dict[int, Failure] = {}
        self.later: dict[int, Failure] = {}
        self._newest: dict[int, Failure] = {}

    def add(self, simulation: int, attempt: int, reason: str, log: str) -> None:
        """An attempt has failed, and another one may follow."""
        self._newest[simulation] = _failure(simulation, attempt + 1, reason, log)

    def add_later(self, simulation: int, attempt: int, reason: str, log: str) -> None:
        """An attempt has failed that had sent every time step."""
        self.later[simulation] = _failure(simulation, attempt + 1, reason, log)

    def give_up(self, simulation: int, num_attempts: int, reason: str, log: str) -> None:
        """No other attempt follows."""
        self.given_up.append(_failure(simulation, num_attempts, reason, log))

    def try_again(self, simulation: int) -> None:
        """Another attempt begins."""
        if simulation in self._newest:
            self.retried[simulation] = self._newest.pop(simulation)

    def newest_of(self, simulations: Container[int]) -> list[Failure]:
        """The newest failures of those simulations that no other attempt has followed."""
        return [failure for simulation, failure in self._newest.items() if simulation in simulations]

    def state_dict(self) -> dict[str, Any]:
        return {
            "failures": _copies(self.given_up),
            "retried": _copies(self.retried.values()),
            "failed_later": _copies(self.later.values()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.given_up = _copies(state["failures"])
        self.retried = {failure["id"]: failure for failure in _copies(state["retried"])}
        self.later = {failure["id"]: failure for failure in _copies(state["failed_later"])}


def _failure(simulation: int, num_attempts: int, reason: str, log: str) -> Failure:
    return {"id": simulation, "attempts": num_attempts, "reason": reason, "log": log}


def _copies(failures: Any) -> list[Any]:
    return [dict(failure) for failure in failures]
