"""Lets the faults of a plan happen, and counts those that really did."""

from functools import partial
from typing import TYPE_CHECKING

from tests.faults.simulated.machine import Program
from tests.faults.simulated.network import Line
from tests.faults.simulated.plan import Fault

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

CUTTABLE = "tcp:"
# Three failures in a row before the first sample stop a study, as they should; one may well be.
MAX_EARLY = 1
CLIENTS = ("client", "shell")
# Two in a row would last longer than a simulation may be silent.
BETWEEN_STALLS_S = 10.0


class Faults:
    """Strikes a world as its plan says. `last_at` is when it did so last, or a program that was stopped went on."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._num_early = 0
        self._may_stall_at = 0.0
        self._at_failpoints: dict[tuple[str, int], Fault] = {}
        for fault in world.plan.faults:
            if fault.failpoint:
                self._at_failpoints[fault.failpoint, fault.passage] = fault
            else:
                world.threads.at(fault.at, partial(self._strike, fault))

    def passed(self, failpoint: str, passage: int) -> None:
        """The program that runs comes by a failpoint."""
        fault = self._at_failpoints.pop((failpoint, passage), None)
        if fault is not None:
            self._hit(fault, self._world.machine.current)

    def _strike(self, fault: Fault) -> None:
        world = self._world
        if fault.kind == "stall":
            if world.threads.now < self._may_stall_at:
                return
            self._may_stall_at = world.threads.now + fault.lasts_s + BETWEEN_STALLS_S
            world.network.stall(fault.lasts_s)
            self._note("stall of the network", fault.lasts_s)
        elif fault.kind == "cut":
            self._cut()
        elif victims := [it for it in world.machine.living() if it.name.startswith(fault.target)]:
            self._hit(fault, world.draw.choice(victims))

    def _hit(self, fault: Fault, program: Program) -> None:
        if self._is_too_early(program):
            return
        kind = program.name.partition(" ")[0]
        if fault.kind == "stop":
            self._note(f"stop of a {kind}", fault.lasts_s)
            self._stop(program, fault.lasts_s)
        else:
            self._note(f"kill of a {kind}")
            self._world.machine.kill(program)

    def _cut(self) -> None:
        world = self._world
        lines = world.network.lines(_can_be_cut)
        if lines:
            self._note("cut of a connection")
            world.network.cut(world.draw.choice(lines))

    def _stop(self, program: Program, lasts_s: float) -> None:
        def go_on() -> None:
            if program.status is None:
                program.is_stopped = False

        program.is_stopped = True
        self._world.threads.after(lasts_s, go_on)
        if self._world.threads.current is not None:
            self._world.threads.switch("stopped")

    def _is_too_early(self, program: Program) -> bool:
        if program.name not in CLIENTS or self._world.trained:
            return False
        self._num_early += 1
        return self._num_early > MAX_EARLY

    def _note(self, what: str, lasts_s: float = 0.0) -> None:
        self._world.happened[what] += 1
        self._world.calm_from(self._world.threads.now + lasts_s)


def _can_be_cut(line: Line) -> bool:
    return line.place.startswith(CUTTABLE)
