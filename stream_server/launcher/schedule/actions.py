"""The actions that the schedule decides on; that a client gets nothing is a message of its own (`NoneLeft`)."""

from dataclasses import dataclass

from stream_server.messages.launcher_link import NoneLeft


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


@dataclass(frozen=True, kw_only=True, slots=True)
class FailLater:
    """An attempt of which the server has every time step ended with a failure: the simulation stays finished."""

    simulation: int
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """No attempt is left; with `redraw` the study is to name another simulation instead."""

    simulation: int
    attempts: int
    reason: str
    redraw: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """No simulation is started any more, and these wait: they stay as they are."""

    simulations: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Give:
    """The client that asked with `token`, and has this name, gets this attempt."""

    token: int
    simulation: int
    attempt: int
    client: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortStudy:
    """The simulations cannot be made to run. `simulation` and `attempt` are those of the last failure."""

    text: str
    simulation: int
    attempt: int


Action = Submit | Cancel | Continue | Fail | FailLater | GiveUp | Drop | Give | NoneLeft | AbortStudy
