"""The actions that the schedule decides on. What the server is only to hear of is the message that tells it."""

from dataclasses import dataclass

from stream_server.messages.launcher_link import Attached, Dropped, Failed, FailedLater, GaveUp, NoneLeft, TooMany


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


Action = Submit | Cancel | Continue | Failed | FailedLater | GaveUp | Dropped | Attached | NoneLeft | TooMany
