"""Runs one state machine with as many examples as wanted, all of which follow from a seed."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

Machine = type[RuleBasedStateMachine]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`violation` is what Hypothesis says of the smallest history that it found, "" if none was."""

    name: str
    num_examples: int
    wall_s: float
    violation: str


def run_machine(
    name: str, machine: Machine, *, num_examples: int, seed: int, on_example: Callable[[], None] = lambda: None
) -> Outcome:
    """Drive a machine through `num_examples` histories, each as long as in its test."""
    num_run = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nonlocal num_run
            num_run += 1
            on_example()
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
    started, violation = time.monotonic(), ""
    try:
        hypothesis.seed(seed)(test)()
    except Exception as error:
        violation = told(error)
    return Outcome(name=name, num_examples=num_run, wall_s=time.monotonic() - started, violation=violation)


def told(error: Exception) -> str:
    """What was violated, where, and the history that led to it."""
    where = traceback.format_list(traceback.extract_tb(error.__traceback__)[-2:])
    return "\n".join(["".join(where) + f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
