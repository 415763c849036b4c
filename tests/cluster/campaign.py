"""Whole studies on a real Slurm of several hosts, whose controller, limits, allocations and nodes give trouble."""

import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tests.campaigns import Campaign, Round, option
from tests.cluster.allocations import Job, submitted
from tests.cluster.test_server_jobs import held_by_another, servers, state_of
from tests.cluster.test_studies import SCRIPT, jobs_of
from tests.faults.chaos.evidence import gather
from tests.faults.chaos.invariants import violations
from tests.faults.chaos.plan import POLICIES, STUDY, Plan
from tests.needs import lacking
from tests.support.cluster import LOGIN, NETWORK, PROJECT, Cluster
from tests.support.runs import LiveRun, launcher_log, overrides, start_study

LIMIT_S = 400.0
AWAY_S = 60.0
# Longer than the controller is away: it takes no node for lost.
LOST_AFTER_S = 200
MOST_ALLOCATIONS = 8
MOST_SUBMITTED = 2
SHARE_RAISED = 0.3
# A network in which each node has an address, and no cable at first.
UNPLUGGED = "10.98.0"
SUBNET = f"{NETWORK}.0/24"
# No simulation is to fail, however busy the machine is.
PATIENT = {"simulation.timeout_s": 600}
TOLD = "no answer for"
FAILED = re.compile(r" simulation \d+, attempt \d+ failed: ")
OVER_TWO_NODES = ("--nodes=2", "--ntasks-per-node=3", "--mem=2000")

# A class around that for Slurm whose scheduler raises what nobody expects, before it has done something or afterwards.
TROUBLED = """
import random

from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.slurm import Slurm


class Troubled(BatchBackend):
    def __init__(self, config, kind):
        super().__init__(kind, Slurm(kind), ask_s=1.0, missing_s=5.0, retry_s=2.0)
        draw = random.Random({seed!r})
        for name in ("submit", "queue", "cancel"):
            setattr(self.scheduler, name, troubled(getattr(self.scheduler, name), draw))


def troubled(method, draw):
    def call(*arguments, **options):
        for do in (lambda: None, lambda: method(*arguments, **options)):
            done = do()
            if draw.random() < {share}:
                raise KeyError("getpwuid(): uid not found: 1000")
        return done

    return call
"""
# An sbatch with limits, in the words of Slurm 22.05 with a database of accounts. Without one there are no limits.
LIMITED = """#!/bin/sh
refuse() {{
    echo "$1" >> '{folder}/refused'
    echo "sbatch: error: $1" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)" >&2
    exit 1
}}
case "$*" in *--cpus-per-task=2*) refuse QOSMaxCpuPerJobLimit ;; esac
case "$*" in
*--test-only*) ;;
*) [ "$({squeue} -h -t pending,running,completing -o %i | wc -l)" -lt {most} ] || refuse QOSMaxSubmitJobPerUserLimit ;;
esac
exec {sbatch} "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One study on a cluster of three nodes, in a folder that all hosts see."""

    cluster: Cluster
    plan: Plan
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> str:
        return launcher_log(self.run)

    @contextmanager
    def on_login(self, settings: Mapping[str, Any], *, first_on_path: Path | None = None) -> Iterator[LiveRun]:
        """Run `stream-launcher` on the login node, whose jobs are Slurm's."""
        within = self.cluster.on(LOGIN, self.folder)
        if first_on_path is not None:
            within.append(f"PATH={first_on_path}{os.pathsep}{os.environ['PATH']}")
        told = self.plan.settings() | PATIENT | {"launcher.backend": "slurm", **settings}
        options: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "settings": told, "within": within}
        with start_study(self.folder / "study.json", self.run, **options) as live:
            try:
                yield live
            finally:
                if numbers := list(jobs_of(self.cluster, live).values()):
                    self.cluster.run(LOGIN, "scancel", "--quiet", *numbers)

    def in_allocation(self, settings: dict[str, Any], *words: str) -> Job:
        """Submit the study with simulations as steps of its own job."""
        within = {"launcher.backend": "slurm-steps", "study.output_dir": "run"}
        told = self.plan.settings() | PATIENT | within | settings
        options = " ".join(f"'{word}'" for word in overrides(told))
        script = SCRIPT.format(bin=Path(sys.prefix) / "bin", project=PROJECT, study="study.json", options=options)
        (self.folder / "job.sh").write_text(script)
        return submitted(self.cluster, self.folder, *words, "--open-mode=append", "job.sh")

    def has_begun(self) -> bool:
        """Whether a simulation is done and a checkpoint committed."""
        return " finished" in self.log and "is committed" in self.log

    def violations(self, exit_code: int) -> Iterator[str]:
        """The promises that the study broke: its own account, what its server counted, and failures of simulations."""
        yield from violations(gather(self.plan, self.run, exit_code, ()))
        for line in self.log.splitlines():
            if FAILED.search(line) and "not counted" not in line:
                yield f"held against a simulation: {line}"

    def tried_again(self) -> Iterator[str]:
        """The simulations that took more than one attempt, where none need."""
        for simulation in sorted((self.run / "simulations").iterdir()):
            if (simulation / "attempt-1").exists():
                yield f"simulation {simulation.name} lost its place: it was started again"

    def told_once(self) -> Iterator[str]:
        """The violations, if the one outage was not told exactly once."""
        lines = [line for line in self.log.splitlines() if TOLD in line]
        if len(lines) != 1:
            yield f"the outage was told {len(lines)} times: {lines}"


def controller_away(trial: Trial) -> Iterator[str]:
    """The controller is away while simulations are steps of the study's allocation."""
    job = trial.in_allocation({"server.ranks": 2}, *OVER_TWO_NODES)
    job.wait_until(trial.has_begun, LIMIT_S)
    _without_controller(trial.cluster)
    yield from trial.violations(job.end(LIMIT_S).exit_code)
    yield from trial.tried_again()
    yield from trial.told_once()


def controller_away_from_server(trial: Trial) -> Iterator[str]:
    """The controller is away while server and simulations are jobs."""
    with trial.on_login({"server.backend": "slurm", "network.interface": SUBNET}) as live:
        live.wait_until(trial.has_begun, LIMIT_S)
        _without_controller(trial.cluster)
        done = live.end(LIMIT_S)
    yield from trial.violations(done.exit_code)
    yield from trial.tried_again()
    yield from trial.told_once()


def allocation_ends(trial: Trial) -> Iterator[str]:
    """Allocations of a minute follow each other until the study is done; nobody tells it how long they are."""
    for number in range(MOST_ALLOCATIONS):
        job = trial.in_allocation({"server.ranks": 2, "launcher.max_running": 2}, *OVER_TWO_NODES, "--time=1")
        done = job.end(LIMIT_S)
        if job.queue("%T") == "TIMEOUT":
            yield f"allocation {number} came to its end before the study had left"
        if done.exit_code == 0:
            break
    if number == 0:
        yield "the study was done within its first allocation"
    yield from trial.violations(done.exit_code)


def scheduler_raises(trial: Trial) -> Iterator[str]:
    """A third of the answers of the scheduler are exceptions that nobody expects."""
    (trial.folder / "troubled.py").write_text(TROUBLED.format(seed=trial.plan.seed, share=SHARE_RAISED))
    with trial.on_login({"launcher.backend": "troubled.py:Troubled"}) as live:
        done = live.end(LIMIT_S)
    if "getpwuid" not in trial.log:
        yield "the scheduler raised nothing"
    yield from trial.violations(done.exit_code)
    yield from trial.tried_again()


def rank_refuses(trial: Trial) -> Iterator[str]:
    """A rank on another node does not reach the launcher; later there is a cable between the nodes."""
    nodes = list(enumerate(trial.cluster.nodes, start=1))
    for number, node in nodes:
        trial.cluster.run(node, "ip", "address", "add", f"{UNPLUGGED}.{number}/24", "dev", "lo")
    spread = {
        "network.interface": f"{UNPLUGGED}.0/24",
        "server.ranks": 2,
        "launcher.max_running": 2,
        "simulation.job.options": {"nodelist": "n3"},
    }
    words = ("--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=3", "--mem=2000")
    job = trial.in_allocation(spread, *words)
    job.wait_until(lambda: f"cannot be reached at tcp://{UNPLUGGED}.1" in job.output, LIMIT_S)
    for number, node in nodes:
        address = f"{UNPLUGGED}.{number}/24"
        trial.cluster.run(node, "ip", "address", "delete", address, "dev", "lo")
        trial.cluster.run(node, "ip", "address", "add", address, "dev", "eth0")
    yield from trial.violations(job.end(LIMIT_S).exit_code)
    yield from trial.tried_again()


def limit_of_jobs(trial: Trial) -> Iterator[str]:
    """The site takes fewer jobs of a user than the study wants to have submitted."""
    with trial.on_login({}, first_on_path=_limited(trial)) as live:
        done = live.end(LIMIT_S)
    if not (trial.folder / "refused").exists():
        yield "no job met the limit"
    yield from trial.violations(done.exit_code)
    yield from trial.tried_again()


def limit_of_a_job(trial: Trial) -> Iterator[str]:
    """The site takes no job of that size: the study is refused in words, and runs with smaller jobs."""
    limited = _limited(trial)
    with trial.on_login({"simulation.job.cores_per_rank": 2}, first_on_path=limited) as live:
        done = live.end(LIMIT_S)
    if done.exit_code != 2 or "QOSMaxCpuPerJobLimit" not in done.output or "Lower simulation.job" not in done.output:
        yield f"jobs that are too large ended the study with {done.exit_code}: {done.output[-1000:]}"
    yield from limit_of_jobs(trial)


def next_server_waits(trial: Trial) -> Iterator[str]:
    """The next job of the server waits in the queue while jobs of simulations begin."""
    settings = {
        "server.backend": "slurm",
        "server.job.options": {"nodelist": "n1"},
        "simulation.job.options": {"nodelist": "n3"},
        "simulation.job.cores_per_rank": 2,
        "client.wait_s": 1,
        "network.interface": SUBNET,
    }
    half = held_by_another(trial.cluster, "n3", "--ntasks=2")
    with half as on_n3, trial.on_login(settings) as live:
        live.wait_until(trial.has_begun, LIMIT_S)
        [server] = servers(trial.cluster, live)
        with held_by_another(trial.cluster, "n1") as on_n1:
            trial.cluster.run(LOGIN, "scancel", server)
            live.wait_until(lambda: state_of(trial.cluster, on_n1) == "RUNNING", LIMIT_S)
            trial.cluster.run(LOGIN, "scancel", on_n3)
            live.wait_until(lambda: len(jobs_of(trial.cluster, live, "running")) == 2, LIMIT_S)
            began = time.monotonic()
            live.wait_until(lambda: time.monotonic() > began + 2 * AWAY_S, LIMIT_S)
        done = live.end(LIMIT_S)
    yield from trial.violations(done.exit_code)
    yield from trial.tried_again()


SCENARIOS: Mapping[str, Callable[[Trial], Iterator[str]]] = {
    "controller away, simulations as steps": controller_away,
    "controller away, server and simulations as jobs": controller_away_from_server,
    "allocations that end": allocation_ends,
    "scheduler that raises": scheduler_raises,
    "rank that refuses to start": rank_refuses,
    "limit of submitted jobs": limit_of_jobs,
    "limit of a job": limit_of_a_job,
    "next job of the server waits": next_server_waits,
}


@dataclass(frozen=True, kw_only=True)
class Clusters(Campaign):
    """Each scenario with a study of its own, `rounds` times. Needs root, Slurm, munge and iproute2."""

    figure: ClassVar[str] = "studies on Slurm"

    rounds: int = option(1, "how often each scenario is tried, with other studies")
    only: Sequence[str] = option((), "these scenarios alone", choices=tuple(SCENARIOS), nargs="+")

    @property
    def total(self) -> int:
        return self.rounds * len(self.only or SCENARIOS)

    def run(self) -> Generator[Round, None, None]:
        if lacks := lacking("a cluster"):
            raise SystemExit(f"this campaign needs {', '.join(lacks)}")
        for number in range(self.rounds):
            for name in self.only or SCENARIOS:
                yield self._round(number, name)

    def _round(self, number: int, name: str) -> Round:
        began, plan = time.monotonic(), _plan(f"{self.seed}/{number}/{name}")
        with Cluster(3, lost_after_s=LOST_AFTER_S) as cluster:
            shutil.copytree(STUDY.parent, cluster.shared / "study", ignore=shutil.ignore_patterns("__pycache__"))
            trial = Trial(cluster=cluster, plan=plan, folder=cluster.shared / "study")
            try:
                found = list(SCENARIOS[name](trial))
            except Exception as error:
                found = [f"raised {error!r}"]
            if found and self.keep:
                shutil.copytree(trial.folder, self.folder / f"{number} {name}", symlinks=True)
        return Round(
            cases={name: 1},
            totals={"samples": len(plan.keys)},
            violations=[f"{name}: {it}" for it in found],
            text=f"round {number}, {name} ({plan.policy}): {time.monotonic() - began:.0f} s",
            again=f"--rounds {self.rounds} --only '{name}'",
        )


def _plan(seed: str) -> Plan:
    draw = random.Random(seed)
    plan = Plan(seed=seed, num_ranks=1, num_simulations=12, num_steps=20, simulation_step_s=0.4)
    return replace(plan, policy=draw.choice(POLICIES), every_batches=draw.choice((3, 5)), mixed=draw.random() < 0.5)


def _without_controller(cluster: Cluster) -> None:
    cluster.stop_controller()
    time.sleep(AWAY_S)
    cluster.start_controller()


def _limited(trial: Trial) -> Path:
    """A folder with an sbatch that has limits."""
    script = trial.folder / "bin" / "sbatch"
    script.parent.mkdir(exist_ok=True)
    programs = {name: shutil.which(name) for name in ("sbatch", "squeue")}
    script.write_text(LIMITED.format(folder=trial.folder, most=MOST_SUBMITTED, **programs))
    script.chmod(0o755)
    return script.parent
