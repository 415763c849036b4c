"""The failed attempts of simulations, as the report tells them. Rank 0; pure."""

from collections.abc import Container, Mapping
from typing import Any, TypedDict


class FailedAttempt(TypedDict):
    """The failure of a simulation: its id, how many attempts it has had, why the last one failed, and its log."""

    id: int
    attempts: int
    reason: str
    log: str


class FailedAttempts:
    """The newest failure of each simulation that had one, by what came of it.

    `given_up` are the simulations that have no attempt left; `later`, by id, attempts that failed after they had sent
    every time step; `retried`, by id, the newest failure that another attempt followed.
    """

    def __init__(self) -> None:
        self.given_up: list[FailedAttempt] = []
        self.retried: dict[int, FailedAttempt] = {}
        self.later: dict[int, FailedAttempt] = {}
        self._newest: dict[int, FailedAttempt] = {}

    def add(self, simulation: int, attempt: int, reason: str, log: str) -> None:
        """An attempt has failed, and another one may follow."""
        self._newest[simulation] = FailedAttempt(id=simulation, attempts=attempt + 1, reason=reason, log=log)

    def add_later(self, simulation: int, attempt: int, reason: str, log: str) -> None:
        """An attempt has failed that had sent every time step."""
        self.later[simulation] = FailedAttempt(id=simulation, attempts=attempt + 1, reason=reason, log=log)

    def give_up(self, simulation: int, num_attempts: int, reason: str, log: str) -> None:
        self.given_up.append(FailedAttempt(id=simulation, attempts=num_attempts, reason=reason, log=log))

    def take_back(self, simulation: int) -> None:
        """A simulation that was given up gets another attempt after all."""
        self.retried |= {failed["id"]: failed for failed in self.given_up if failed["id"] == simulation}
        self.given_up = [failed for failed in self.given_up if failed["id"] != simulation]

    def try_again(self, simulation: int) -> None:
        """Another attempt begins."""
        if simulation in self._newest:
            self.retried[simulation] = self._newest.pop(simulation)

    def newest_of(self, simulations: Container[int]) -> list[FailedAttempt]:
        """The newest failures of those simulations that no other attempt has followed."""
        return [failure for simulation, failure in self._newest.items() if simulation in simulations]

    def state_dict(self) -> dict[str, Any]:
        return {
            "given_up": _copies(self.given_up),
            "retried": _copies(self.retried.values()),
            "failed_later": _copies(self.later.values()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.given_up = _copies(state["given_up"])
        self.retried = {failure["id"]: failure for failure in _copies(state["retried"])}
        self.later = {failure["id"]: failure for failure in _copies(state["failed_later"])}


def _copies(failures: Any) -> list[Any]:
    return [dict(failure) for failure in failures]
