"""What the roster remembers of each simulation."""

from dataclasses import dataclass, field
from enum import StrEnum

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
    """One simulation of the roster; `shares[r]` is the newest word of server rank r.

    `begun`: there was an attempt. `attached`: the current one is run by clients that nobody launched. `ready`: every
    rank knows of it.
    """

    parameters: dict[str, float]
    state: State = State.WAITING
    attempt: int = 0
    begun: bool = False
    attached: bool = False
    ready: bool = False
    reason: str = ""
    shares: dict[int, notices.Share] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """The attempt that the clients of the current one say they belong to."""
        return ATTACHING if self.attached else self.attempt
