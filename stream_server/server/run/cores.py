"""The shares of the simulations and of the server's ranks in the cores of each node.

Why: docs/decisions/0054-cores.md
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stream_server.built_in import BACKENDS
from stream_server.config import StudyConfig
from stream_server.launcher.backends.allocation import SHARE_WITH_STEPS, ServerSize
from stream_server.launcher.backends.environment import PASSIVE, num_threads_of, simulation_environment
from stream_server.machine.cgroups import within_quota
from stream_server.server.run.start import StartOptions
from stream_server.wording import counted

if TYPE_CHECKING:
    from stream_server.server.ranks.communicator import Ranks


# Schedulers run the simulations on cores of their own.
WITH_OWN_NODES = BACKENDS.keys() - SHARE_WITH_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationCores:
    """The number of simulations that run at once, and of the cores that each may use: one for each of its threads."""

    num: int = 0
    cores_each: int = 0

    @classmethod
    def of(cls, config: StudyConfig, environment: Mapping[str, str]) -> "SimulationCores":
        """The simulations that the launcher starts, if `environment` is that of the shell."""
        simulation = config.simulation
        if simulation.command is None or config.launcher.backend in WITH_OWN_NODES:
            return NO_SIMULATIONS
        threads = num_threads_of(simulation_environment(config, environment)) or 1
        num = min(config.launcher.max_running, config.study.simulations + config.validation.simulations)
        if config.launcher.backend == "slurm-steps":
            # Slurm deals them out over the nodes of the allocation.
            num = -(-num // int(environment.get("SLURM_JOB_NUM_NODES", "1")))
        return cls(
            num=num,
            cores_each=simulation.ranks * max(threads, simulation.job.cores_per_rank),
        )


NO_SIMULATIONS = SimulationCores()


def simulation_cores(config: StudyConfig, start: StartOptions) -> SimulationCores:
    """The cores that the simulations of this start take; none in a replay."""
    if start.replay is not None:
        return NO_SIMULATIONS
    # stream-launcher adds the environment of server.job to the server's, and not to that of the simulations.
    added = config.server.job.environment if start.link is not None else {}
    return SimulationCores.of(config, {name: value for name, value in os.environ.items() if name not in added})


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCores:
    """The shares in the cores of one node; `threads` are those of each of its server ranks."""

    cores: int
    simulations: int
    cores_per_simulation: int
    threads: tuple[int, ...]

    @property
    def num_taken(self) -> int:
        """The number of cores that would be busy if everything computed at once."""
        return self.simulations * self.cores_per_simulation + sum(self.threads)

    @property
    def warning(self) -> str:
        """A warning if more threads compute than there are cores; "" otherwise."""
        if self.num_taken <= self.cores:
            return ""
        return (
            f"simulations and server ranks take {self.num_taken} cores of {self.cores} and slow each other down, which "
            "is fine for a trial; run fewer at once to be fast (launcher.max_running, server.ranks or mpirun -n)"
        )

    def __str__(self) -> str:
        parts = [
            f"{counted(num, 'rank')} × {counted(threads, 'thread')}"
            for threads, num in sorted(Counter(self.threads).items())
        ]
        if self.simulations:
            parts.insert(0, f"{counted(self.simulations, 'simulation')} × {self.cores_per_simulation}")
        return f"{self.cores}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cores:
    """The shares in the cores of all nodes. `threads` are those of each rank, as a restart must find them."""

    nodes: tuple[NodeCores, ...] = ()
    threads: tuple[int, ...] = ()

    @property
    def warnings(self) -> list[str]:
        return list(dict.fromkeys(node.warning for node in self.nodes if node.warning))

    def change_since(self, threads: Iterable[int]) -> str:
        """A warning if the ranks of an earlier start had other numbers of threads than now; "" if not."""
        before = sorted(set(threads))
        now = sorted(set(self.threads))
        if before == now:
            return ""
        return (
            f"each rank computes with {_numbers(now)} now, but with {_numbers(before)} before the restart: sums are "
            "rounded differently, so that the results are not the same to the last bit"
        )

    def to_report(self) -> list[dict[str, Any]]:
        """The form in report.json, with the node of rank 0 first."""
        return [{**asdict(node), "oversubscribed": bool(node.warning)} for node in self.nodes]

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.nodes)))


def threads_of_rank(simulations: SimulationCores, *, num_cores: int, num_bound: int, num_ranks: int) -> int:
    """The threads of one of the ranks of a node: its part of the cores that the simulations leave, at least one.

    A rank that is bound to `num_bound` cores has no more than these.
    """
    left = num_cores - simulations.num * simulations.cores_each
    return max(1, min(num_bound, left // num_ranks))


def share_cores(ranks: "Ranks", simulations: SimulationCores = NO_SIMULATIONS) -> Cores:
    """Share out the cores of each node; a user's OMP_NUM_THREADS wins. Collective.

    The simulations run on the node of rank 0, as their launcher does. All depends on the study and the machine alone,
    so that a restart finds the same.
    """
    here = simulations if ranks.node == 0 else NO_SIMULATIONS
    num_bound = len(os.sched_getaffinity(0))
    threads = num_threads_of(os.environ) or threads_of_rank(
        here, num_cores=ranks.num_cores, num_bound=num_bound, num_ranks=ranks.local_size
    )
    per_rank = ranks.broadcast(ranks.gather([ranks.node, ranks.num_cores, threads]))
    nodes = {}
    for number, num_cores, _ in per_rank:
        there = simulations if number == 0 else NO_SIMULATIONS
        nodes[number] = NodeCores(
            cores=num_cores,
            simulations=there.num,
            cores_per_simulation=there.cores_each,
            threads=tuple(num for node, _, num in per_rank if node == number),
        )
    return Cores(nodes=tuple(nodes.values()), threads=tuple(num for _, _, num in per_rank))


def wait_passively(node: NodeCores) -> None:
    """Let the threads of OpenMP sleep while they wait for each other, where more compute than the node has cores.

    For the libraries that are loaded from here on, torch among them, and for what inherits the environment; what the
    user sets wins. Two processes of two threads on two busy cores took 265 ms a step spinning, and 8 ms asleep
    (measured).
    """
    if node.warning and max(node.threads) > 1:
        for name, value in PASSIVE.items():
            os.environ.setdefault(name, value)


def expected_cores(config: StudyConfig) -> NodeCores:
    """The shares in the cores of this node of a study with `server.ranks` ranks."""
    simulations = SimulationCores.of(config, os.environ)
    num_ranks, num_cores = ServerSize.of(config).num_on_node, within_quota(len(os.sched_getaffinity(0)))
    threads = num_threads_of(os.environ) or threads_of_rank(
        simulations, num_cores=num_cores, num_bound=num_cores, num_ranks=num_ranks
    )
    return NodeCores(
        cores=num_cores,
        simulations=simulations.num,
        cores_per_simulation=simulations.cores_each,
        threads=(threads,) * num_ranks,
    )


def _numbers(threads: list[int]) -> str:
    return f"{' or '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'}"
