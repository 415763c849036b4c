"""The messages between the training thread and the receiver thread of one rank: events, and commands."""

from collections.abc import Mapping
from dataclasses import dataclass

from stream_server.messages import launcher_link
from stream_server.messages.notices import EndEarly


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationFinished:
    """Event: every step of a simulation is accepted or rejected, on all ranks."""

    simulation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceptionEnded:
    """Event: no sample will come any more; the buffer of this rank is closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationsFailed:
    """Event (rank 0): the simulations cannot be made to run."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationWarning:
    """Event (rank 0): people should know this of a simulation, and the study goes on."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAsked:
    """Event (rank 0): an operator wants the study to save and leave."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishAsked:
    """Event (rank 0): no further simulation is wanted; the study ends when all that comes is trained."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FromLauncher:
    """Event (rank 0): word of the launcher that concerns people or the main thread."""

    message: (
        launcher_link.PlanAccepted
        | launcher_link.Failed
        | launcher_link.FailedLater
        | launcher_link.Status
        | launcher_link.HeldBack
        | launcher_link.Leave
        | launcher_link.LauncherDone
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherSilence:
    """Event (rank 0): the launcher does not answer any more or, when the silence `is_over`, does so again."""

    is_over: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginStudy:
    """Command (rank 0), the first one: tell the launcher this plan, and all ranks what is over already."""

    plan: launcher_link.Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class ParametersSuggested:
    """Command (rank 0): these simulations have got their parameters, and may be started."""

    parameters: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnoughSuggested:
    """Command (rank 0): no further parameters are suggested, and no others are to be awaited."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCommitted:
    """Command: what was received up to `received_marks` is in a committed checkpoint, and so is durable."""

    received_marks: Mapping[bytes, int]
    checkpoint: int
    batches: int


Event = (
    SimulationFinished
    | ReceptionEnded
    | SimulationsFailed
    | SimulationWarning
    | StopAsked
    | FinishAsked
    | FromLauncher
    | LauncherSilence
)
Command = (
    BeginStudy
    | ParametersSuggested
    | EnoughSuggested
    | EndEarly
    | launcher_link.StopSimulations
    | CheckpointCommitted
    | launcher_link.Leaving
)
