"""Studies whose server is on two nodes, and their simulations on a third; what befalls nodes, networks and time."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stream_server.messages.connection import ConnectionFile
from tests.resources.clocks import built, jumping
from tests.support.cluster import LOGIN, NETWORK, PROJECT, Cluster, missing
from tests.support.launch import OPENMPI_PREFIX
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, launcher_log
from tests.support.timing import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"a cluster needs root, Slurm, munge and iproute2: {missing()}"),
]
# Longer than a cable is pulled: the controller takes no node for lost.
LOST_AFTER_S = 150
LIMIT_S = 150.0
SUBNET = f"{NETWORK}.0/24"
LOOK_S = 0.5
MINUTES_S = 600
SAVED_S = 25.0
PACED = ["python", "paced.py", "0.1"]
# A server on the first two of three nodes, and simulations on the third.
SPREAD = {
    "study.output_dir": "run",
    "study.simulations": 12,
    "simulation.command": PACED,
    "simulation.timeout_s": 60,
    "simulation.job.options": {"nodelist": "n3"},
    "server.ranks": 2,
    "launcher.backend": "slurm-steps",
    "launcher.max_running": 2,
    "checkpoint.every_s": 2,
    "network.interface": SUBNET,
}
SCRIPT = """#!/bin/bash
export PATH={path}:$PATH PYTHONPATH={project} OMP_NUM_THREADS=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec python "$(command -v stream-launcher)" --config study.json {options}
"""
PATHS = {"mpich": f"{sys.prefix}/bin", "openmpi": f"{OPENMPI_PREFIX}/bin:{sys.prefix}/bin"}


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A cluster of three nodes of the test's own, which may lose and restart what it likes."""
    with Cluster(3, lost_after_s=LOST_AFTER_S) as cluster:
        yield cluster


@pytest.fixture
def study(nodes: Cluster) -> Path:
    """The folder of a study that all hosts see."""
    folder = nodes.shared / f"study {len(list(nodes.shared.iterdir()))}"
    shutil.copytree(NUMPY_STUDY.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of Slurm that runs a study in the folder `study`."""

    cluster: Cluster
    study: Path
    number: str

    def queue(self, what: str) -> str:
        """What squeue says of it, also for some minutes after its end."""
        lines = self.cluster.run(LOGIN, "squeue", "-h", "-t", "all", "-o", f"%i {what}").splitlines()
        return next((line.partition(" ")[2] for line in lines if line.split()[0] == self.number), "")

    @property
    def has_ended(self) -> bool:
        return self.queue("%T") not in ("RUNNING", "PENDING", "COMPLETING")

    @property
    def output(self) -> str:
        file = self.study / "output"
        return file.read_text() if file.exists() else ""

    @property
    def log(self) -> str:
        return launcher_log(self.study / "run")

    def wait_until(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
        def is_so() -> bool:
            if condition():
                return True
            assert not self.has_ended, self._story()
            return False

        until(is_so, limit_s, look_s=LOOK_S, told=self._story)

    def end(self, limit_s: float = LIMIT_S) -> Run:
        """Wait for its end."""
        until(lambda: self.has_ended, limit_s, look_s=LOOK_S, told=self._story)
        exit_code = 0 if self.queue("%T") == "COMPLETED" else 1
        return Run(exit_code=exit_code, output=self.output + self.log, output_dir=self.study / "run", wall_s=0)

    def cancel(self) -> None:
        """See that nothing of it is left."""
        self.cluster.run(LOGIN, "scancel", self.number)
        until(lambda: self.has_ended, LIMIT_S, look_s=LOOK_S)

    def _story(self) -> str:
        return f"{self.queue('%T %r')}\n{self.output}\n{self.log[-5000:]}"


def submitted(cluster: Cluster, study: Path, script: str, *words: str, **environment: str) -> Job:
    """A job that was submitted from the folder of the study."""
    told = [f"{name}={value}" for name, value in environment.items()]
    command = [*cluster.on(LOGIN, study), *told, "sbatch", "--parsable", "--output=output", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Job(cluster=cluster, study=study, number=done.stdout.strip())


@pytest.fixture
def spread(nodes: Cluster, study: Path) -> Iterator[Callable[..., Job]]:
    """Starts a study over three nodes."""
    started: list[Job] = []

    def start(settings: Mapping[str, Any], *, mpi: str = "mpich", options: Sequence[str] = ()) -> Job:
        told = " ".join(f"--set '{key}={json.dumps(value)}'" for key, value in (SPREAD | dict(settings)).items())
        script = study / "job.sh"
        script.write_text(SCRIPT.format(path=PATHS[mpi], project=PROJECT, options=told))
        wanted = ["--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=3", "--mem=2000", "--open-mode=append", *options]
        command = [*nodes.on(LOGIN, study), "sbatch", "--parsable", "--output=output", *wanted, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        started.append(Job(cluster=nodes, study=study, number=done.stdout.strip()))
        return started[-1]

    yield start
    for job in started:
        job.cancel()


def test_a_study_over_three_nodes_hears_and_sees_all_ranks_whatever_their_clocks_say(
    nodes: Cluster, study: Path, spread: Callable[..., Job]
) -> None:
    # LD_PRELOAD takes no spaces.
    library = built(nodes.folder)
    late = jumping(library, study / "late", shift_s=-MINUTES_S, in_s=-1)
    early = jumping(library, study / "early", shift_s=MINUTES_S, in_s=-1) | {"SHIFT_ON": "n2"}
    # srun itself must have the clock of its node.
    command = ["env", *(f"{name}={value}" for name, value in late.items()), *PACED]
    job = spread({"simulation.command": command, "server.job.environment": early})
    job.wait_until(lambda: "simulation 1 finished" in job.log)
    connection = ConnectionFile.read(study / "run" / "connection.json")
    assert [it.rpartition(":")[0] for it in connection.control if it.startswith("tcp")] == [f"tcp://{NETWORK}.2"]
    nodes.cut("n2")
    time.sleep(5)
    nodes.reconnect("n2")
    nodes.stop_controller()
    nodes.start_controller()
    nodes.restart_daemon("n3")
    done = job.end()
    assert_complete(done, num_simulations=12)
    assert done.report["restarts"] == 0
    # A step that is started just while slurmctld is away, or slurmd is started again, may fail.
    assert max(done.attempts.values()) <= 2
    assert any((study / "early").iterdir())
    # The launcher's file for ranks on other nodes has gone with its server.
    assert not list((study / "run").glob("stream-launcher-*"))


def test_a_server_and_simulations_that_are_cut_off_for_a_minute_lose_nothing(
    nodes: Cluster, spread: Callable[..., Job]
) -> None:
    job = spread({"study.simulations": 6}, mpi="openmpi")
    job.wait_until(lambda: "simulation 1 finished" in job.log)
    began = time.monotonic()
    for node in ("n2", "n3"):
        nodes.cut(node)
    job.wait_until(lambda: "rank 1 of the server does not answer any more" in job.log)
    assert time.monotonic() - began < 30
    time.sleep(60 - (time.monotonic() - began))
    for node in ("n2", "n3"):
        nodes.reconnect(node)
    done = job.end()
    assert_complete(done, num_simulations=6)
    assert done.report["restarts"] >= 1


def test_a_study_goes_on_in_another_allocation_when_a_node_of_its_server_is_lost(
    nodes: Cluster, spread: Callable[..., Job]
) -> None:
    job = spread(
        {"server.ranks": {"min": 1, "max": 2}, "simulation.job.options": {}}, options=["--nodes=2-3", "--requeue"]
    )
    job.wait_until(lambda: "simulation 3 finished" in job.log and "Committed" in job.log)
    nodes.lose("n2")
    # As the controller does by itself after SlurmdTimeout.
    nodes.run(LOGIN, "scontrol", "update", "nodename=n2", "state=down", "reason=lost")
    try:
        job.wait_until(lambda: job.queue("%T") == "PENDING")
        nodes.run(LOGIN, "scontrol", "update", f"jobid={job.number}", "starttime=now")
        done = job.end()
    finally:
        nodes.start_host("n2")
        nodes.run(LOGIN, "scontrol", "update", "nodename=n2", "state=resume")
        nodes.wait_for_nodes()
    assert_complete(done, num_simulations=12)
    assert done.report["restarts"] >= 1


GROUP = """
import sys
from pathlib import Path
import torch
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch.group import TorchGroup
ranks = ranks_from_environment()
with TorchGroup(ranks, backend="gloo", shared=Path("shared"), interface=sys.argv[1]):
    total = torch.tensor([float(ranks.rank + 1)])
    torch.distributed.all_reduce(total)
print(f"node {ranks.node} of {ranks.num_nodes} has {total.item()}", flush=True)
"""
TWO_NODES = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --mem=2000
export PATH={path}:$PATH PYTHONPATH={project} OMP_NUM_THREADS=1
mpirun -n 2 python group.py {subnet}
mpirun -n 2 stream-server --config study.json --set network.interface={of_n2}
echo "ended with $?"
mpirun -n 2 stream-server --config study.json --set network.interface=lo
echo "ended with $?"
"""


def test_torchs_ranks_meet_on_two_nodes_and_an_interface_that_one_of_them_lacks_is_refused(
    nodes: Cluster, study: Path
) -> None:
    (study / "group.py").write_text(GROUP)
    (study / "job.sh").write_text(
        TWO_NODES.format(path=PATHS["mpich"], project=PROJECT, subnet=SUBNET, of_n2=f"{NETWORK}.3")
    )
    job = submitted(nodes, study, "job.sh")
    try:
        job.end()
    finally:
        job.cancel()
    assert all(f"node {node} of 2 has 3.0" in job.output for node in (0, 1))
    assert f"there is no {NETWORK}.3 on node n1, which has lo (127.0.0.1), eth0 ({NETWORK}.2)" in job.output
    assert "do not reach each other by lo (127.0.0.1)" in job.output
    assert job.output.count("ended with 2") == 2


def test_a_study_goes_on_from_allocation_to_allocation_as_the_example_does(nodes: Cluster, study: Path) -> None:
    """The script of configs/heat, with a smaller study, a walltime of a minute, and nodes that are taken by others."""
    shutil.copy(PROJECT / "configs" / "heat" / "chain.sh", study)
    plain = json.loads((PROJECT / "tests" / "study" / "numpy_study" / "study.json").read_text())
    example = (PROJECT / "configs" / "heat" / "one-allocation.json").read_text()
    assert '"ranks": {"min": 1, "max": 4}' in example
    plain["study"] |= {"simulations": 64, "output_dir": "run"}
    plain["simulation"] |= {"command": ["python", "paced.py", "0.2"], "timeout_s": 60}
    plain["server"]["ranks"] = {"min": 1, "max": 2}
    plain["launcher"] = {"backend": "slurm-steps", "max_running": 4}
    (study / "one-allocation.json").write_text(json.dumps(plain))
    job = submitted(
        *(nodes, study, "chain.sh"),
        SBATCH_TIMELIMIT="1",
        SBATCH_SIGNAL="B:USR1@45",
        PATH=f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        PYTHONPATH=str(PROJECT),
        OMP_NUM_THREADS="1",
    )
    others: list[Job] = []
    try:
        for taken in (2, 1):
            job.wait_until(lambda: job.queue("%T") == "PENDING" and job.queue("%r") == "BeginTime")
            for other in others:
                other.cancel()
            (study / "sleep.sh").write_text("#!/bin/sh\nsleep 600\n")
            others = [
                submitted(nodes, study, "sleep.sh", SBATCH_EXCLUSIVE="exclusive", SBATCH_TIMELIMIT="10")
                for _ in range(taken)
            ]
            for other in others:
                until(lambda other=other: other.queue("%T") == "RUNNING", look_s=0.1)  # type: ignore[misc]
            # Slurm lets a job that is queued again wait for two minutes.
            nodes.run(LOGIN, "scontrol", "update", f"jobid={job.number}", "starttime=now")
        for other in others:
            other.cancel()
        until(lambda: _queued_again(nodes, job) or job.has_ended, 2 * LIMIT_S, look_s=LOOK_S)
        done = job.end(2 * LIMIT_S)
    finally:
        for it in (*others, job):
            it.cancel()
    assert_complete(done, num_simulations=64)
    assert done.report["restarts"] >= 2
    starts = [line for line in job.log.splitlines() if "server, start" in line]
    # The third of three nodes has no room for more than one rank.
    assert [2 if "'-n', '2'" in line else 1 for line in starts][:3] == [2, 1, 2]
    saved = [line for line in job.log.splitlines() if "stopped by SIGUSR1:" in line or "Committed" in line]
    pairs = [pair for pair in pairwise(saved) if "SIGUSR1" in pair[0]]
    assert len(pairs) >= 2
    assert all(_told_at(committed) - _told_at(stopped) < SAVED_S for stopped, committed in pairs)


def _told_at(line: str) -> float:
    """The time of a line of the launcher's log, in seconds."""
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def _queued_again(nodes: Cluster, job: Job) -> bool:
    if job.queue("%r") == "BeginTime":
        nodes.run(LOGIN, "scontrol", "update", f"jobid={job.number}", "starttime=now")
    return False
