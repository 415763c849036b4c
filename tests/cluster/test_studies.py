"""Whole studies on a cluster: simulations as jobs of Slurm, and server and simulations within one allocation."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cluster import LOGIN, PROJECT, Cluster
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, start_study

pytestmark = pytest.mark.slow

PACED = {"launcher.max_running": 5, "study.simulations": 6, "simulation.command": ["python", "paced.py", "0.25"]}


@pytest.fixture
def study(folder: Path) -> Path:
    """A study in a folder that all hosts see."""
    shutil.copytree(NUMPY_STUDY.parent, folder / "ripple", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "ripple" / "study.json"


@contextmanager
def on_login(cluster: Cluster, study: Path, settings: dict[str, Any], **options: Any) -> Iterator[LiveRun]:
    """Run a study with stream-launcher on the login node, its simulations as jobs."""
    within = cluster.on(LOGIN, study.parent)
    jobs = {"launcher.backend": "slurm", **settings}
    with start_study(
        study, study.parent / "run", program="stream-launcher", mpi=None, settings=jobs, within=within, **options
    ) as live:
        yield live


def jobs_of(cluster: Cluster, live: LiveRun, state: str = "all") -> dict[str, str]:
    """The numbers of the jobs of a study, by their names."""
    attempts = cluster.run(LOGIN, "squeue", "-h", "-t", state, "-o", "%j %i %Z").splitlines()
    mine = [line.split() for line in attempts if str(live.output_dir) in line.replace("\\", "")]
    names = [name for name, *_ in mine]
    assert len(set(names)) == len(names)
    return {name: number for name, number, *_ in mine}


def launcher_of(live: LiveRun) -> psutil.Process:
    """The process of stream-launcher; what it has forked to run a command has its name for a moment, too."""
    found = []
    for it in live.processes():
        with suppress(psutil.Error):
            if "stream-launcher" in " ".join(it.cmdline()[:5]):
                found.append((it.create_time(), it.pid, it))
    return min(found)[-1]


@pytest.mark.full
def test_simulations_are_jobs_on_the_nodes_and_one_that_scancel_ends_is_run_again(
    cluster: Cluster, study: Path
) -> None:
    with on_login(cluster, study, PACED) as live:
        live.wait_until(lambda: len(jobs_of(cluster, live, "running")) == 5)
        victim = next(number for name, number in jobs_of(cluster, live).items() if "-2-attempt-0-" in name)
        cluster.run(LOGIN, "scancel", victim)
        done = live.end(limit_s=80)
    assert_complete(done, num_simulations=6)
    assert done.attempts == dict.fromkeys(range(7), 1) | {2: 2}
    assert "simulation 2, attempt 0 was cancelled from outside" in done.launcher_log
    names = "".join(cluster.run(LOGIN, "squeue", "-h", "-t", "all", "-o", "%N"))
    assert "n1" in names
    assert "n2" in names


def test_a_launcher_that_is_killed_while_five_jobs_run_submits_none_of_them_again(
    cluster: Cluster, study: Path
) -> None:
    with on_login(cluster, study, PACED) as live:
        live.wait_until(lambda: len(jobs_of(cluster, live, "running")) == 5)
        before = jobs_of(cluster, live)
        launcher_of(live).kill()
        live.process.wait()
        with on_login(cluster, study, PACED, mark=live.mark) as second:
            done = second.end(limit_s=80)
            after = jobs_of(cluster, second)
    assert_complete(done, num_simulations=6)
    assert set(done.attempts.values()) == {1}
    assert before.items() <= after.items()
    assert len(after) == 7


PLACED = """
import os
print(os.uname().nodename, flush=True)
from ripple import connect, send_all
with connect() as simulation:
    send_all(simulation)
"""
SCRIPT = """#!/bin/bash
export PATH={bin}:$PATH PYTHONPATH={project} OMP_NUM_THREADS=1
exec stream-launcher --config '{study}' {options}
"""


def in_allocation(cluster: Cluster, study: Path, settings: dict[str, Any]) -> Run:
    """Run a study within an allocation of two nodes, its simulations as steps, to its end."""
    settings = {"study.output_dir": "run", "launcher.backend": "slurm-steps", **settings}
    options = " ".join(f"--set '{key}={json.dumps(value)}'" for key, value in settings.items())
    script = study.parent / "job.sh"
    script.write_text(SCRIPT.format(bin=Path(sys.prefix) / "bin", project=PROJECT, study=study, options=options))
    wanted = ["--nodes=2", "--ntasks=6", "--ntasks-per-node=3", "--mem=2000", f"--chdir={study.parent}"]
    command = ["sbatch", "--parsable", "--wait", "--output=output", *wanted, str(script)]
    ended = subprocess.run([*cluster.on(LOGIN), *command], capture_output=True)
    output = (study.parent / "output").read_text()
    assert ended.returncode == 0, output
    return Run(exit_code=0, output=output, output_dir=study.parent / "run", wall_s=0)


def test_server_and_simulations_share_one_allocation_of_two_nodes(cluster: Cluster, study: Path) -> None:
    settings = {
        "launcher.max_running": 4,
        "server.ranks": 2,
        "simulation.command": ["python", "placed.py"],
    }
    (study.parent / "placed.py").write_text(PLACED)
    done = in_allocation(cluster, study, settings)
    assert_complete(done, num_simulations=6)
    assert {done.log(simulation).split()[0] for simulation in range(7)} == {"n1", "n2"}
