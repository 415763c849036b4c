"""What the roster remembers of each simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stream_server.client_api.messages import ATTACHING
from stream_server.server import notices


class State(StrEnum):
    """Where a simulation stands; the last four are terminal."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    GIVEN_UP = "given_up"
    INVALID = "invalid"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self not in (State.WAITING, State.RUNNING)


@dataclass(kw_only=True, slots=True)
class Entry:
    """One simulation of the roster; `shares[r]` is the newest word of server rank r on the current attempt.

    `num_settled` counts the steps that were accepted or rejected, `total` those that there are, as far as an earlier
    attempt or epoch has told.

    `begun`: there was an attempt. `attached`: the current one is run by clients that nobody launched. `ready`: every
    rank knows of it. `goes_on`: it ran before this server did, and has not been heard of since.
    """

    parameters: dict[str, float]
    state: State = State.WAITING
    attempt: int = 0
    begun: bool = False
    attached: bool = False
    ready: bool = False
    goes_on: bool = False
    reason: str = ""
    total: int | None = None
    num_settled: int = 0
    shares: dict[int, notices.Share] = field(default_factory=dict)

    @classmethod
    def restored(cls, saved: Mapping[str, Any], total: int | None, *, is_finished: bool) -> "Entry":
        """Made from `to_plain`; what was neither given up nor withdrawn is finished, or else to come.

        `total` is the number of steps of a finished simulation, if the ledgers know it.
        """
        state, reason = State(saved["state"]), saved["reason"]
        if state not in (State.GIVEN_UP, State.INVALID):
            state, reason = State.FINISHED if is_finished else State.WAITING, ""
        return cls(
            parameters=dict(saved["parameters"]),
            state=state,
            attempt=saved["attempt"],
            begun=saved["begun"],
            reason=reason,
            total=saved["total"] if total is None else total,
            num_settled=saved["num_settled"],
        )

    def to_plain(self) -> dict[str, Any]:
        """What a later epoch must know."""
        return {
            "parameters": dict(self.parameters),
            "state": self.state.value,
            "attempt": self.attempt,
            "begun": self.begun,
            "reason": self.reason,
            "total": self.num_steps,
            "num_settled": self.num_settled,
        }

    @property
    def num_steps(self) -> int | None:
        """How many steps the simulation said it has, or the study gave it; None while neither has said."""
        totals = [share.total for share in self.shares.values() if share.total is not None]
        # A rank that has its whole share may not have heard yet that the simulation ended early.
        return min(totals, default=self.total)

    @property
    def wanted(self) -> int:
        """The attempt that the clients of the current one say they belong to."""
        return ATTACHING if self.attached else self.attempt
