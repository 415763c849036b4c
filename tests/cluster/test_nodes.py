"""Studies whose server is on two nodes, and their simulations on a third; what befalls nodes, networks and clocks."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stream_server.messages.connection import ConnectionFile
from tests.cluster.allocations import Job, submitted
from tests.faults.resources.clocks import built, jumping
from tests.support.cluster import LOGIN, NETWORK, PROJECT, Cluster
from tests.support.launch import OPENMPI_PREFIX
from tests.support.runs import NUMPY_STUDY, assert_complete

pytestmark = pytest.mark.slow
# Longer than a cable is pulled: the controller takes no node for lost.
LOST_AFTER_S = 150
SUBNET = f"{NETWORK}.0/24"
MINUTES_S = 600
PACED = ["python", "paced.py", "0.15"]
# A server on the first two of three nodes, and simulations on the third.
SPREAD = {
    "study.output_dir": "run",
    "study.simulations": 8,
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
    assert_complete(done, num_simulations=8)
    assert done.report["restarts"] == 0
    # A step that is started just while slurmctld is away, or slurmd is started again, may fail.
    assert max(done.attempts.values()) <= 2
    assert any((study / "early").iterdir())
    # The launcher's file for ranks on other nodes has gone with its server.
    assert not list((study / "run").glob("stream-launcher-*"))


@pytest.mark.full
@pytest.mark.parametrize("cut_s", [0, 60], ids=["until it is noticed", "for a minute"])
def test_a_server_and_simulations_that_are_cut_off_lose_nothing(
    nodes: Cluster, spread: Callable[..., Job], cut_s: float
) -> None:
    job = spread({"study.simulations": 6}, mpi="openmpi")
    job.wait_until(lambda: "simulation 1 finished" in job.log)
    began = time.monotonic()
    for node in ("n2", "n3"):
        nodes.cut(node)
    job.wait_until(lambda: "rank 1 of the server does not answer any more" in job.log)
    assert time.monotonic() - began < 30
    time.sleep(max(0, cut_s - (time.monotonic() - began)))
    for node in ("n2", "n3"):
        nodes.reconnect(node)
    done = job.end()
    assert_complete(done, num_simulations=6)
    assert done.report["restarts"] >= 1


@pytest.mark.full
def test_a_study_goes_on_in_another_allocation_when_a_node_of_its_server_is_lost(
    nodes: Cluster, spread: Callable[..., Job]
) -> None:
    job = spread(
        {"server.ranks": {"min": 1, "max": 2}, "simulation.job.options": {}}, options=["--nodes=2-3", "--requeue"]
    )
    job.wait_until(lambda: "simulation 3 finished" in job.log and "is committed" in job.log)
    nodes.lose("n2")
    # As the controller does by itself after SlurmdTimeout.
    nodes.run(LOGIN, "scontrol", "update", "nodename=n2", "state=down", "reason=lost")
    try:
        job.wait_until(job.waits_to_begin)
        nodes.run(LOGIN, "scontrol", "update", f"jobid={job.number}", "starttime=now")
        done = job.end()
    finally:
        nodes.start_host("n2")
        nodes.run(LOGIN, "scontrol", "update", "nodename=n2", "state=resume")
        nodes.wait_for_nodes()
    assert_complete(done, num_simulations=8)
    assert done.report["restarts"] >= 1


@pytest.mark.full
def test_a_rank_that_has_no_route_to_the_launcher_ends_the_study_with_words(
    nodes: Cluster, spread: Callable[..., Job]
) -> None:
    for number, node in enumerate(("n1", "n2"), start=1):
        # A network in which each node has an address, and no cable.
        nodes.run(node, "ip", "address", "add", f"10.98.0.{number}/24", "dev", "lo")
    job = spread({"network.interface": "10.98.0.0/24", "launcher.restarts": 0})
    done = job.end()
    assert done.exit_code != 0
    assert "rank 1 on node n2: stream-launcher cannot be reached at tcp://10.98.0.1:" in done.output
    assert "launcher.restarts allows no more" in done.output


GROUP = """
import sys
from pathlib import Path
import torch
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch.devices import TorchGroup
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


@pytest.mark.full
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
