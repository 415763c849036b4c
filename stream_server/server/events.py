"""What the receiver thread tells the training thread."""

from dataclasses import dataclass

from stream_server.launcher import link


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationFinished:
    """Every step of a simulation is accepted or rejected, on all ranks."""

    simulation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceptionEnded:
    """No sample will come any more: the buffer of this rank is closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFailed:
    """The simulations cannot be made to run (rank 0)."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FromLauncher:
    """Word of the launcher that concerns people or the main thread (rank 0)."""

    message: link.Ready | link.Failed | link.Status | link.HeldBack | link.Leave | link.Bye


Event = SimulationFinished | ReceptionEnded | StudyFailed | FromLauncher
