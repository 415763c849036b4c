"""A study in this process whose network breaks, from the first word to the last sample, and a judgement of it."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty

import numpy as np

from stream_server.client_api import connect
from stream_server.errors import SimulationError
from stream_server.messages.client import FieldSpec, TimeSteps
from stream_server.messages.connection import ConnectionFile
from stream_server.server.intake import mailbox
from tests.faults.network.crossing import Crossing, crossing
from tests.faults.network.faults import Fault, Flip
from tests.support.reception import Crew, StudyShape

MAX_ATTEMPTS = 3
# A step has this many numbers of its own: more than any field has values.
NUMBERS = 1_000_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordeal:
    """A study and what its network does: `control` to connections for Hello, `data[r]` to those with server rank r.

    `num_values` are the float64 of one client rank in a time step; `wait_s` is how long a client waits for a word.
    With `in_step` no client rank computes the next time step before all have sent this one, as in most solvers.
    """

    secure: bool
    data: tuple[tuple[Fault, ...], ...]
    control: tuple[Fault, ...] = ()
    num_simulations: int = 1
    num_client_ranks: int = 1
    in_step: bool = False
    num_steps: int = 30
    num_values: int = 4
    credit: int = 4
    capacity: int = 100
    wait_s: float = 15.0
    seed: str = "0"

    @property
    def shape(self) -> StudyShape:
        """The study as its receivers see it."""
        return StudyShape(
            secure=self.secure,
            fields=(FieldSpec(name="u", shape=(self.num_client_ranks, self.num_values), dtype="<f8"),),
            time_steps=TimeSteps(num=self.num_steps),
            num_ranks=len(self.data),
            num_simulations=self.num_simulations,
            at_once=self.num_simulations,
            credit=self.credit,
            capacity=self.capacity,
        )

    @property
    def flips(self) -> bool:
        """Whether bits change on the way."""
        return any(isinstance(fault, Flip) for course in (self.control, *self.data) for fault in course)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome: on how many connections which faults were felt, and a sentence for each violation."""

    ordeal: Ordeal
    struck: Counter[str]
    num_connections: int
    num_attempts: int
    errors: tuple[str, ...]
    violations: tuple[str, ...]
    wall_s: float


def content(simulation: int, step: int, rank: int, num_values: int) -> np.ndarray:
    """The values that one client rank sends: numbers that no other step or rank has."""
    return ((simulation * 1000 + step) * 10 + rank) * NUMBERS + np.arange(num_values)


def endure(ordeal: Ordeal) -> Outcome:
    """Run the study to its end. The clients are started again when they fail, as the launcher would."""
    start = time.monotonic()
    found: list[str] = []
    draw = random.Random(ordeal.seed)
    with crossing(ordeal.shape, control=ordeal.control, data=ordeal.data, wait_s=ordeal.wait_s, draw=draw) as net:
        runs = [_Attempts(ordeal, net, simulation) for simulation in range(ordeal.num_simulations)]
        crew = Crew()
        for work in (*(rank.drain for rank in net.study.ranks), *(run.run for run in runs)):
            crew.start(work)
        try:
            for rank in net.study.ranks:
                rank.wait_for(mailbox.ReceptionEnded)
        except Empty:
            found.append("the study did not end")
        for rank in net.study.ranks:
            rank.buffer.close()
        try:
            crew.join()
        except Exception as error:
            found.append(f"a thread of the study failed: {error!r}")
        found += _wrong_samples(ordeal, net)
        errors = tuple(error for run in runs for error in run.errors)
        if errors and not ordeal.flips:
            found += [f"a simulation failed: {error}" for error in errors]
        return Outcome(
            ordeal=ordeal,
            struck=net.struck,
            num_connections=sum(proxy.num_connections for proxy in (net.control, *net.data)),
            num_attempts=sum(run.num for run in runs),
            errors=errors,
            violations=tuple(found),
            wall_s=time.monotonic() - start,
        )


class _Attempts:
    """One simulation, until an attempt of it ends well. `num` counts them; `errors` are what the others ended with."""

    def __init__(self, ordeal: Ordeal, net: Crossing, simulation: int) -> None:
        self.ordeal = ordeal
        self.net = net
        self.simulation = simulation
        self.num = 0
        self.errors: list[str] = []

    def run(self) -> None:
        """Start one attempt after the other."""
        while self.num < MAX_ATTEMPTS:
            file = self.net.launch(self.simulation, self.num)
            self.num += 1
            failed: list[str] = []
            crew = Crew()
            meeting = threading.Barrier(self.ordeal.num_client_ranks)
            for rank in range(self.ordeal.num_client_ranks):
                crew.start(self._solve, file, rank, meeting, failed)
            crew.join()
            self.errors += failed
            if not failed:
                return

    def _solve(self, file: ConnectionFile, rank: int, meeting: threading.Barrier, failed: list[str]) -> None:
        ordeal = self.ordeal
        try:
            with connect(file, rank=rank, num_ranks=ordeal.num_client_ranks, timeout_s=ordeal.wait_s) as simulation:
                for step in range(ordeal.num_steps):
                    u = content(simulation.id, step, rank, ordeal.num_values)
                    simulation.send(step, u=u[np.newaxis])
                    if ordeal.in_step:
                        meeting.wait(ordeal.wait_s)
        except (SimulationError, threading.BrokenBarrierError) as error:
            meeting.abort()
            failed.append(f"attempt {self.num - 1}: {type(error).__name__}: {error}")


def _wrong_samples(ordeal: Ordeal, net: Crossing) -> Iterator[str]:
    """Every step of every simulation was drawn once, and holds what was sent."""
    counts = Counter(key for rank in net.study.ranks for key in rank.drawn)
    expected = {(i, j) for i in range(ordeal.num_simulations) for j in range(ordeal.num_steps)}
    if lost := expected - counts.keys():
        yield f"{len(lost)} of {len(expected)} samples never came: {sorted(lost)[:5]}"
    if strange := counts.keys() - expected:
        yield f"samples that were never sent: {sorted(strange)[:5]}"
    if doubled := [key for key, num in counts.items() if num > 1]:
        yield f"{len(doubled)} samples came more than once: {sorted(doubled)[:5]}"
    for rank in net.study.ranks:
        for (simulation, step), row in rank.rows.items():
            sent = [content(simulation, step, it, ordeal.num_values) for it in range(ordeal.num_client_ranks)]
            if not np.array_equal(row["u"], np.stack(sent)):
                yield f"step {step} of simulation {simulation} does not hold what was sent"
