"""The phases of a simulation, by the words that stand in messages, checkpoints and reports, and on the page."""

from enum import StrEnum

import msgspec

# A running simulation whose job waits; counted and shown like a phase.
QUEUED = "queued"


class SimulationPhase(StrEnum):
    """The phase of a simulation; the last five are terminal."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    GIVEN_UP = "given_up"
    INVALID = "invalid"
    STOPPED = "stopped"
    STOPPED_EARLY = "stopped_early"

    @property
    def terminal(self) -> bool:
        return self not in (SimulationPhase.WAITING, SimulationPhase.RUNNING)


TERMINAL = frozenset(phase for phase in SimulationPhase if phase.terminal)


class SavedSimulation(msgspec.Struct, frozen=True, array_like=True):
    """One simulation in a checkpoint."""

    simulation: int
    parameters: dict[str, float] | None
    phase: SimulationPhase
    attempt: int
    begun: bool
    reason: str
    total: int | None
    num_settled: int


def saved_simulations(rows: bytes) -> list[SavedSimulation]:
    """The simulations in the rows of a roster.

    Raises:
        ValueError: these are none.
    """
    return msgspec.msgpack.decode(rows, type=list[SavedSimulation])
