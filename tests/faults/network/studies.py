"""A whole study under `stream-launcher` whose simulations reach their server through proxies only."""

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.chaos.evidence import gather
from tests.faults.chaos.invariants import violations
from tests.faults.chaos.plan import STUDY, Plan
from tests.faults.network.draws import course
from tests.faults.network.faults import Fault
from tests.faults.network.proxy import LOOPBACK, Proxy
from tests.support.runs import Run, start_study

# All of 127.0.0.0/8 is this machine.
PLACE = "127.0.0.2"
SIMULATION = Path(__file__).parent / "study" / "wave.py"
# Rank 0 takes three ports and each other rank one.
NUM_PORTS = 4
CONNECTION_BYTES = 30_000
LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Journey:
    """A study of two server ranks, and what its network does on each of the server's ports."""

    plan: Plan
    secure: bool
    courses: tuple[tuple[Fault, ...], ...]

    @classmethod
    def drawn(cls, seed: str) -> "Journey":
        """A study of a campaign; its network breaks again and again, and has healed in the end."""
        draw = random.Random(seed)
        secure = draw.random() < 0.7
        plan = Plan(
            seed=seed,
            policy=draw.choice(("fifo", "firo", "reservoir")),
            num_simulations=8,
            num_steps=40,
            simulation_step_s=0.02,
            step_s=0.01,
        )
        courses = tuple(course(draw, 16, CONNECTION_BYTES, flips=secure) for _ in range(NUM_PORTS))
        return cls(plan=plan, secure=secure, courses=courses)

    def settings(self, first_port: int) -> dict[str, Any]:
        """The keys of study.json that differ from tests/faults/chaos/study."""
        command = ["python", str(SIMULATION), str(self.plan.simulation_step_s), LOOPBACK, PLACE, str(STUDY.parent)]
        return self.plan.settings() | {
            "simulation.command": command,
            "network.security": "curve" if self.secure else "none",
            "network.interface": LOOPBACK,
            "network.ports": [first_port, first_port + NUM_PORTS - 1],
            "client.wait_s": 30,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """The outcome of a journey."""

    journey: Journey
    struck: Counter[str]
    num_connections: int
    violations: tuple[str, ...]
    wall_s: float


def travel(journey: Journey, folder: Path) -> Arrival:
    """Run the study to its end and judge it."""
    start = time.monotonic()
    first_port = free_ports(random.Random(journey.plan.seed))
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(f"tcp://{LOOPBACK}:{port}", faults, at=(PLACE, port)))
            for port, faults in enumerate(journey.courses, start=first_port)
        ]
        study = start_study(
            STUDY, folder / "run", program="stream-launcher", mpi=None, settings=journey.settings(first_port)
        )
        try:
            done = stack.enter_context(study).end(LIMIT_S)
            found = tuple(_violations(journey, done))
        except AssertionError as error:
            found = (str(error),)
        return Arrival(
            journey=journey,
            struck=sum((proxy.struck for proxy in proxies), Counter()),
            num_connections=sum(proxy.num_connections for proxy in proxies),
            violations=found,
            wall_s=time.monotonic() - start,
        )


def free_ports(draw: random.Random) -> int:
    """The first of NUM_PORTS neighbouring ports that nobody has, here and at the place of the proxies."""
    while True:
        first = draw.randrange(15_000, 30_000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + NUM_PORTS):
                    for host in (LOOPBACK, PLACE):
                        stack.enter_context(socket.socket()).bind((host, port))
            except OSError:
                continue
            return first


def _violations(journey: Journey, done: Run) -> Iterator[str]:
    evidence = gather(journey.plan, done.output_dir, done.exit_code, [])
    yield from violations(evidence)
    if len(evidence.incarnations) != 1:
        yield f"the server was started {len(evidence.incarnations)} times, though only the network was bad"
    flips = any(type(fault).__name__ == "Flip" for faults in journey.courses for fault in faults)
    if not flips and (again := {i: num for i, num in done.attempts.items() if num > 1}):
        yield f"simulations were started again, though only the network was bad: {again}"
