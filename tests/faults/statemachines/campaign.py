"""Every state machine of the project is driven through many histories."""

import logging
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

from tests.campaigns import Campaign, Round, option

MACHINES = {
    "fifo": "tests.buffers.test_fifo:FifoMachine",
    "firo": "tests.buffers.test_firo:FiroMachine",
    "reservoir": "tests.buffers.test_reservoir:ReservoirMachine",
    "buffer": "tests.buffers.test_buffer_machine:BufferMachine",
    "intake": "tests.server.intake.test_intake_machine:IntakeMachine",
    "session": "tests.client_api.test_session_machine:SessionMachine",
    "ensemble": "tests.launcher.simulations.test_ensemble_machine:EnsembleMachine",
    "schedule": "tests.launcher.schedule.test_schedule_rules:ScheduleRules",
}
INTERLEAVINGS = {"buffer threads": "tests.buffers.interleaving:play"}
NAMES = (*MACHINES, *INTERLEAVINGS)

Machine = type[RuleBasedStateMachine]


@dataclass(frozen=True, kw_only=True)
class StateMachines(Campaign):
    """Each machine through `examples` histories, and, where one breaks a promise, the smallest that does."""

    figure: ClassVar[str] = "state machines"

    examples: int = option(2000, "histories of each machine")
    only: Sequence[str] = option(NAMES, "these alone", choices=NAMES, nargs="+", metavar="NAME")

    @property
    def total(self) -> int:
        return len(self.only) * self.examples

    def run(self) -> Generator[Round, None, None]:
        logging.disable(logging.CRITICAL)
        try:
            for name in self.only:
                num_run, violation = self._histories(name)
                yield Round(
                    cases={name: num_run},
                    violations=[f"{name}: {violation}"] if violation else [],
                    again=f"--examples {self.examples} --only '{name}'",
                    size=self.examples,
                )
        finally:
            logging.disable(logging.NOTSET)

    def _histories(self, name: str) -> tuple[int, str]:
        drive = drive_machine if name in MACHINES else drive_interleavings
        module, attribute = (MACHINES | INTERLEAVINGS)[name].split(":")
        return drive(getattr(import_module(module), attribute), num_examples=self.examples, seed=self.seed)


def drive_interleavings(play: Callable[[int], None], *, num_examples: int, seed: int) -> tuple[int, str]:
    """Play histories until one breaks a promise: their number, and what is told of that one."""
    random = Random(seed)
    for number in range(num_examples):
        history = random.getrandbits(32)
        try:
            play(history)
        except Exception as error:
            return number + 1, f"{told(error)}\nthe history of seed {history}"
    return num_examples, ""


def drive_machine(machine: Machine, *, num_examples: int, seed: int) -> tuple[int, str]:
    """Drive a machine through histories, each as long as in its test: their number, and the smallest that fails."""
    num_run = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nonlocal num_run
            num_run += 1
            super().__init__()

    Counted.__name__ = machine.__name__
    test = get_state_machine_test(
        Counted,
        settings=settings(
            machine.TestCase.settings,
            max_examples=num_examples,
            database=None,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    try:
        hypothesis.seed(seed)(test)()
    except Exception as error:
        return num_run, told(error)
    return num_run, ""


def told(error: Exception) -> str:
    """The violation, its place, and the history that led to it."""
    where = traceback.format_list(traceback.extract_tb(error.__traceback__)[-2:])
    return "\n".join(["".join(where) + f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
