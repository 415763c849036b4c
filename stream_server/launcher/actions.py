"""What the schedule wants done."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Submit:
    """Start the job of an attempt, and with it those of the attempts `beside` it, which share the job."""

    simulation: int
    attempt: int
    beside: tuple["Submit", ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """End the job of an attempt, and with it all that share it; `job_ended` is told of each when it is over."""

    simulation: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Continue:
    """An attempt goes on under a new plan: the server and its client are to hear of each other."""

    simulation: int
    attempt: int
    attached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail:
    """An attempt failed. An `excuse` says why that does not count against the simulation."""

    simulation: int
    attempt: int
    reason: str
    excuse: str = ""

    @property
    def counted(self) -> bool:
        return not self.excuse


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """No attempt is left; with `redraw` the study is to name another simulation instead."""

    simulation: int
    attempts: int
    reason: str
    redraw: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Give:
    """The client that asked with `token`, and has this name, gets this attempt."""

    token: int
    simulation: int
    attempt: int
    client: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decline:
    """The client that asked with `token` gets nothing; `busy` when it may ask again later."""

    token: int
    text: str
    busy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StopStudy:
    """The simulations cannot be made to run. `simulation` and `attempt` are those of the last failure."""

    text: str
    simulation: int
    attempt: int


Action = Submit | Cancel | Continue | Fail | GiveUp | Give | Decline | StopStudy
