"""Runs one state machine, or one interleaving of threads, with as many examples as wanted, which follow from a seed."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

from tests.machines.registry import MACHINES, interleaving_of, machine_of

Machine = type[RuleBasedStateMachine]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`violation` tells of the smallest history that broke a promise, as far as one could be found; "" if none did."""

    name: str
    num_examples: int
    wall_s: float
    violation: str


def run(name: str, *, num_examples: int, seed: int, on_example: Callable[[], None] = lambda: None) -> Outcome:
    """Drive what has this name in the registry through `num_examples` histories."""
    started, num_run = time.monotonic(), 0

    def count() -> None:
        nonlocal num_run
        num_run += 1
        on_example()

    if name in MACHINES:
        violation = run_machine(machine_of(name), num_examples=num_examples, seed=seed, on_example=count)
    else:
        violation = run_interleavings(interleaving_of(name), num_examples=num_examples, seed=seed, on_example=count)
    return Outcome(name=name, num_examples=num_run, wall_s=time.monotonic() - started, violation=violation)


def run_interleavings(
    play: Callable[[int], None], *, num_examples: int, seed: int, on_example: Callable[[], None]
) -> str:
    """Play histories until one breaks a promise; tells of that one."""
    random = Random(seed)
    for _ in range(num_examples):
        on_example()
        number = random.getrandbits(32)
        try:
            play(number)
        except Exception as error:
            return f"{told(error)}\nthe history of seed {number}"
    return ""


def run_machine(machine: Machine, *, num_examples: int, seed: int, on_example: Callable[[], None]) -> str:
    """Drive a machine through histories, each as long as in its test; tells of the smallest that breaks a promise."""

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
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
    try:
        hypothesis.seed(seed)(test)()
    except Exception as error:
        return told(error)
    return ""


def told(error: Exception) -> str:
    """What was violated, where, and the history that led to it."""
    where = traceback.format_list(traceback.extract_tb(error.__traceback__)[-2:])
    return "\n".join(["".join(where) + f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
