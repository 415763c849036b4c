"""All state machines of the project, by name."""

from importlib import import_module

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


def machine_of(name: str) -> type[RuleBasedStateMachine]:
    """The class of a machine."""
    module, cls = MACHINES[name].split(":")
    machine: type[RuleBasedStateMachine] = getattr(import_module(module), cls)
    return machine
