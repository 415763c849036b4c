"""All state machines of the project, by name, and what else is driven through histories that follow from a seed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

MACHINES = {
    "fifo": "tests.buffers.test_fifo:FifoMachine",
    "firo": "tests.buffers.test_firo:FiroMachine",
    "reservoir": "tests.buffers.test_reservoir:ReservoirMachine",
    "buffer": "tests.buffers.test_buffer_machine:BufferMachine",
    "intake": "tests.server.test_intake_machine:IntakeMachine",
    "conversation": "tests.client_api.test_conversation_machine:ConversationMachine",
    "ensemble": "tests.launcher.test_ensemble_machine:EnsembleMachine",
    "schedule": "tests.launcher.test_schedule_rules:ScheduleRules",
}
INTERLEAVINGS = {"buffer threads": "tests.buffers.interleaving:play"}
NAMES = (*MACHINES, *INTERLEAVINGS)


def machine_of(name: str) -> type[RuleBasedStateMachine]:
    """The class of a machine."""
    machine: type[RuleBasedStateMachine] = _named(MACHINES[name])
    return machine


def interleaving_of(name: str) -> Callable[[int], None]:
    """What plays the history of a seed; it raises where a promise is broken."""
    play: Callable[[int], None] = _named(INTERLEAVINGS[name])
    return play


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)
