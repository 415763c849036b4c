"""A study that goes on from allocation to allocation, each with a walltime and nodes of its own."""

import json
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.allocations import LIMIT_S, LOOK_S, Job, submitted
from tests.support.cluster import LOGIN, PROJECT, Cluster
from tests.support.runs import NUMPY_STUDY, assert_complete
from tests.support.timing import until

pytestmark = pytest.mark.slow
SAVED_S = 25.0
NUM = 32


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A cluster of three nodes."""
    with Cluster(3, lost_after_s=150) as cluster:
        yield cluster


@pytest.fixture
def study(nodes: Cluster) -> Path:
    """The folder of a study that all hosts see."""
    folder = nodes.shared / "study"
    shutil.copytree(NUMPY_STUDY.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_study_goes_on_from_allocation_to_allocation_as_the_example_does(nodes: Cluster, study: Path) -> None:
    """The script of configs/heat, with a smaller study, a walltime of a minute, and nodes that are taken by others."""
    shutil.copy(PROJECT / "configs" / "heat" / "chain.sh", study)
    plain = json.loads((PROJECT / "tests" / "study" / "numpy_study" / "study.json").read_text())
    example = (PROJECT / "configs" / "heat" / "one-allocation.json").read_text()
    assert '"ranks": {"min": 1, "max": 4}' in example
    plain["study"] |= {"simulations": NUM, "output_dir": "run"}
    plain["simulation"] |= {"command": ["python", "paced.py", "0.4"], "timeout_s": 60}
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
            job.wait_until(job.waits_to_begin)
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
        until(lambda: _queued_again(nodes, job) or job.has_ended(), 2 * LIMIT_S, look_s=LOOK_S)
        done = job.end(2 * LIMIT_S)
    finally:
        for it in (*others, job):
            it.cancel()
    assert_complete(done, num_simulations=NUM)
    assert done.report["restarts"] >= 2
    starts = [line for line in job.log.splitlines() if "server, start" in line]
    # The third of three nodes has no room for more than one rank.
    assert [2 if " -n 2 " in line else 1 for line in starts][:3] == [2, 1, 2]
    saved = [line for line in job.log.splitlines() if "stopped by SIGUSR1:" in line or "is committed" in line]
    pairs = [pair for pair in pairwise(saved) if "SIGUSR1" in pair[0]]
    assert len(pairs) >= 2
    assert all(_told_at(committed) - _told_at(stopped) < SAVED_S for stopped, committed in pairs)


def _told_at(line: str) -> float:
    """The time of a line of the launcher's log, in seconds."""
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def _queued_again(nodes: Cluster, job: Job) -> bool:
    if job.waits_to_begin():
        nodes.run(LOGIN, "scontrol", "update", f"jobid={job.number}", "starttime=now")
    return False
