"""Warnings about single simulations and their failed attempts, with which the study goes on. Rank 0; pure."""

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any, TypedDict

from stream_server.server.intake.mailbox import SimulationWarning
from stream_server.wording import counted

MOST_TOLD = 5


class WarningKind(StrEnum):
    """The kinds of warnings, also used as the text of the line that counts those beyond `MOST_TOLD`."""

    KEPT = "could not be withdrawn any more"
    DIFFERENT = "sent other values than an earlier attempt of it"
    REPEATED = "sent a time step more than once"
    SHORT = "finished early"


class SimulationWarnings:
    """The warnings of a study: of each kind the first `MOST_TOLD`, and the number of the others."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._num_of = dict.fromkeys(WarningKind, 0)

    @property
    def texts(self) -> list[str]:
        """Lines for the report."""
        beyond = {kind: num - MOST_TOLD for kind, num in self._num_of.items() if num > MOST_TOLD}
        return [*self._texts, *(f"{counted(num, 'more time')} a simulation {kind}" for kind, num in beyond.items())]

    def kept(self, simulation: int, why: str, reason: str) -> list[SimulationWarning]:
        """Note that one could not be withdrawn any more, for its own `reason`; returns what is to be told now."""
        text = f"{WarningKind.KEPT}, and what it sent is trained on: {why}. Its reason: {reason}"
        return self._add(WarningKind.KEPT, f"simulation {simulation} {text}")

    def repeated(self, simulation: int, attempt: int) -> list[SimulationWarning]:
        """Note that an attempt sent a time step more than once; returns what is to be told now."""
        text = (
            f"simulation {simulation}, attempt {attempt} {WarningKind.REPEATED}: what came first is kept, "
            "and the rest is dropped. Does the program count its time step on?"
        )
        return self._add(WarningKind.REPEATED, text)

    def differs(self, simulation: int, attempt: int, difference: str) -> list[SimulationWarning]:
        """Note that an attempt went along another trajectory than an earlier one; returns what is to be told now."""
        text = (
            f"simulation {simulation}, attempt {attempt} {WarningKind.DIFFERENT}, in {difference}. Its "
            "samples are of two trajectories now, and windows with steps of both are left out of the training. Seed "
            "the program's random numbers, for instance with the id of the simulation, so that each attempt computes "
            "the same"
        )
        return self._add(WarningKind.DIFFERENT, text)

    def short(self, simulation: int, num_sent: int, num_steps: int) -> list[SimulationWarning]:
        """Note that one finished before all time steps of the study; returns what is to be told now."""
        text = f"{WarningKind.SHORT}: it sent {num_sent} of the {num_steps} steps of study.time_steps"
        return self._add(WarningKind.SHORT, f"simulation {simulation} {text}")

    def state_dict(self) -> dict[str, Any]:
        return {"texts": list(self._texts), "num_of": {kind.value: num for kind, num in self._num_of.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._texts = list(state["texts"])
        self._num_of = {kind: state["num_of"].get(kind.value, 0) for kind in WarningKind}

    def _add(self, kind: WarningKind, text: str) -> list[SimulationWarning]:
        """Note a warning; one that is there already is not told again."""
        if text in self._texts:
            return []
        self._num_of[kind] += 1
        if self._num_of[kind] > MOST_TOLD:
            return []
        self._texts.append(text)
        return [SimulationWarning(text=text)]


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
