"""A whole study whose simulations run on another node, to which the cable is cut for a while.

The launcher stays with its server, as in every study of this version: what they say to each other goes through files
and sockets of one node.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.chaos.evidence import gather
from tests.faults.chaos.invariants import violations
from tests.faults.chaos.plan import STUDY, Plan
from tests.faults.network.node import Node
from tests.support.runs import LiveRun, Run, start_study

LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DistantStudy:
    """A study whose server is here and whose simulations are on the node."""

    plan: Plan
    node: Node
    settings: dict[str, Any]

    def start(self, folder: Path) -> AbstractContextManager[LiveRun]:
        """Start it under `stream-launcher`."""
        wave = str(STUDY.parent / "wave.py")
        own = {
            "simulation.command": self.node.command("python", wave, str(self.plan.simulation_step_s)),
            "network.interface": self.node.here,
        }
        settings = self.plan.settings() | own | self.settings
        return start_study(STUDY, folder / "run", program="stream-launcher", mpi=None, settings=settings)

    def violations(self, done: Run) -> Iterator[str]:
        """Violations of what must hold at the end: every sample once, and one start of the server."""
        evidence = gather(self.plan, done.output_dir, done.exit_code, [])
        yield from violations(evidence)
        if len(evidence.incarnations) != 1:
            yield f"the server was started {len(evidence.incarnations)} times, though only the cable was cut"


def num_trained(live: LiveRun) -> int:
    """How many batches all ranks have trained so far."""
    return sum(file.read_text().count("keys") for file in (live.output_dir / "audit").glob("*.jsonl"))


def endure_partition(seed: str, cut_s: float, folder: Path) -> list[str]:
    """Cut the cable for so long while the simulations run; what is wrong when the study has ended."""
    plan = Plan(seed=seed, num_simulations=8, num_steps=60, simulation_step_s=0.05)
    with Node() as node:
        study = DistantStudy(plan=plan, node=node, settings={})
        with study.start(folder) as live:
            live.wait_until(lambda: num_trained(live))
            node.cut()
            time.sleep(cut_s)
            before = num_trained(live)
            node.reconnect()
            live.wait_until(lambda: num_trained(live) > before, LIMIT_S)
            done = live.end(LIMIT_S)
        again = {simulation: num for simulation, num in done.attempts.items() if num > 1}
        return [*study.violations(done), *([f"simulations were started again: {again}"] if again else [])]
