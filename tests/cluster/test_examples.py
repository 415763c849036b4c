"""The studies for a cluster that we ship run as their batch scripts stand."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_studies import jobs_of
from tests.support.cluster import LOGIN, PROJECT, Cluster
from tests.support.runs import LEFT_BY_WORK, assert_complete, start_study
from tests.support.timing import until

pytestmark = pytest.mark.slow

SMALL = {
    "study.simulations": 6,
    "study.output_dir": "run",
    "validation.simulations": 1,
    "training.draws_per_sample": 1,
    "buffer.watermark": 50,
}
LIMIT_S = 120
# The network is looked at in tests/configs; each of its ranks would import torch for as long as all else takes.
MEAN_FIELD = """
import numpy as np

from stream_server import StreamServer


class HeatServer(StreamServer):
    def prepare_training_attributes(self):
        self.mean = np.zeros((40, 40))

    def process_simulation_data(self, data, config):
        return data.fields["temperature"]

    def training_step(self, batch, batch_idx):
        errors = batch - self.mean
        (total,) = self.all_reduce([errors.mean(axis=0)])
        self.mean += 0.1 * total
        return float(np.mean(errors**2))

    def validation_step(self, batch, batch_idx):
        return float(np.mean((batch - self.mean) ** 2))

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]
"""


@contextmanager
def submitted(cluster: Cluster, folder: Path, script: str) -> Iterator[Path]:
    """A copy of the example, of which a script was submitted as its README says; gives its output folder."""
    study = folder / "heat"
    shutil.copytree(PROJECT / "configs" / "heat", study, ignore=LEFT_BY_WORK)
    (study / "server.py").write_text(MEAN_FIELD)
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = [*cluster.on(LOGIN, study), f"PYTHONPATH={PROJECT}", "OMP_NUM_THREADS=1", "sbatch", "--parsable"]
    done = subprocess.run([*command, "--output=output", script, *settings], capture_output=True, text=True, check=True)
    number = done.stdout.strip()
    try:
        yield study / "run"
    finally:
        cluster.run(LOGIN, "scancel", number)
        until(lambda: not cluster.run(LOGIN, "squeue", "-h", "-t", "pending,running,completing"), LIMIT_S)


def assert_balanced(output_dir: Path) -> None:
    """The study has come to its end, and lost nothing."""
    file, output = output_dir / "report.json", output_dir.parent / "output"
    until(file.exists, LIMIT_S, told=lambda: output.read_text() if output.exists() else "no output")
    report = json.loads(file.read_text())
    assert report["exit_reason"] == "finished", output.read_text()
    assert report["balanced"] is True
    assert report["simulations"]["finished"] == 7


def test_the_example_of_one_allocation_ends_balanced(cluster: Cluster, folder: Path) -> None:
    with submitted(cluster, folder, "one-allocation.sh") as output_dir:
        assert_balanced(output_dir)


def test_the_example_of_a_job_for_each_simulation_ends_balanced_though_one_is_cancelled(
    cluster: Cluster, folder: Path
) -> None:
    def job_of_a_simulation() -> str:
        lines = cluster.run(LOGIN, "squeue", "-h", "-o", "%i %j").splitlines()
        return next((line.split()[0] for line in lines if "-attempt-0-" in line), "")

    with submitted(cluster, folder, "job-each.sh") as output_dir:
        cluster.run(LOGIN, "scancel", until(job_of_a_simulation, LIMIT_S))
        assert_balanced(output_dir)
        assert "attempt 0 was cancelled" in (output_dir / "logs" / "launcher.log").read_text()


@pytest.mark.full
def test_the_example_of_a_server_that_is_a_job_ends_balanced(cluster: Cluster, folder: Path) -> None:
    study = folder / "heat"
    shutil.copytree(PROJECT / "configs" / "heat", study, ignore=LEFT_BY_WORK)
    config, within = study / "server-job.json", cluster.on(LOGIN, study)
    with start_study(
        *(config, study / "run"), program="stream-launcher", mpi=None, settings=SMALL, within=within
    ) as live:
        done = live.end(LIMIT_S)
        assert len([name for name in jobs_of(cluster, live) if "-server-start-" in name]) == 1
    assert_complete(done, num_simulations=6, num_steps=100)
