"""The study of a droplet on Debian's LAMMPS: what the server has is what `dump custom` wrote, also after kills."""

import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.errors import EXIT_SAVED
from stream_server.server.replay.record_format import SAMPLES
from stream_server.server.replay.record_reader import RankRecord
from tests.configs.test_studies import CONFIGS, assert_all_finished, first_and_last_loss
from tests.needs import need
from tests.support.lammps import AS_ROOT, MPIRUN, environment_of, make_client, read_dump
from tests.support.runs import LEFT_BY_WORK, Run, run_study, start_study

NUM_SERVER_RANKS = 2
STEPS = range(10, 201, 10)
DUMP = """
dump d all custom 10 dump.txt id x y z vx vy vz c_neighbours
dump_modify d format float %.17g
"""
# Half-way one rank of LAMMPS dies, and another simulation waits until the server has died.
TROUBLE = """
import os, pathlib, signal, time

def trouble():
    folder = pathlib.Path(__file__).parent
    simulation, attempt = (int(os.environ[f"STREAM_{name}"]) for name in ("SIMULATION_ID", "ATTEMPT"))
    if (simulation, attempt, os.environ["OMPI_COMM_WORLD_RANK"]) == (1, 0, "1"):
        os.kill(os.getpid(), signal.SIGKILL)
    if simulation == 2:
        (folder / "half-way").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
"""
HALVES = 'run 100\npython trouble here "from trouble import trouble; trouble()"\nrun 100\n'
# Learns the mean number of neighbours.
SERVER = """
import numpy as np
from stream_server import StreamServer, pack


class MeanServer(StreamServer):
    def prepare_training_attributes(self):
        self.mean = np.zeros(1)

    def process_batch(self, batch, config):
        neighbours, offsets = pack(batch.fields["neighbours"])
        return np.add.reduceat(neighbours, offsets[:-1]) / np.diff(offsets)

    def training_step(self, batch, batch_idx):
        (error,) = self.all_reduce([np.array([np.mean(batch - self.mean)])])
        self.mean += 0.1 * error
        return self.validation_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        return float(np.mean((batch - self.mean) ** 2))

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]

    def replicated_state(self):
        return self.state_dict()
"""
# LAMMPS on two ranks, and the server above.
OF_MEAN = {
    "server.class": "server.py:MeanServer",
    "server.ranks": NUM_SERVER_RANKS,
    "simulation.ranks": 2,
    "simulation.job.mpirun": [*MPIRUN, "{ranks}"],
    "buffer": {"policy": "fifo", "capacity": 100},
    "training": {"batch_size": 5},
    "validation.every_batches": 5,
    "metrics.writers": [],
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("LAMMPS")
    return make_client(tmp_path_factory.mktemp("lammps") / "client")


@pytest.fixture
def droplet(tmp_path: Path) -> Callable[..., Path]:
    """A copy of the example whose LAMMPS writes a dump, too."""

    def copy(run: str = "run 200\n") -> Path:
        shutil.copytree(CONFIGS / "lammps", tmp_path / "lammps", ignore=LEFT_BY_WORK)
        script = tmp_path / "lammps" / "in.droplet"
        before, found, _ = script.read_text().partition("run          500\n")
        assert found
        script.write_text(before + DUMP + run)
        return tmp_path / "lammps" / "study.json"

    return copy


def settings_of(client: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "study.simulations": 2,
        "study.time_steps.last": STEPS[-1],
        "launcher.max_running": 1,
        "simulation.job.environment": environment_of(client),
        "checkpoint.record": True,
        "validation.simulations": 1,
        **more,
    }


def recorded(done: Run) -> list[tuple[tuple[int, int], dict[str, NDArray[Any]]]]:
    """All samples that the server was sent, with simulation and time step."""
    samples = []
    for rank in range(NUM_SERVER_RANKS):
        record = RankRecord(done.output_dir / "record", rank)
        for entry in map(record.read, range(len(record))):
            if entry.kind in SAMPLES:
                samples.append(((entry.simulation, entry.time_step), dict(entry.fields)))
        record.close()
    return samples


def assert_each_once_as_dumped(done: Run, num_simulations: int) -> None:
    samples = recorded(done)
    assert len(samples) == len(dict(samples)) == num_simulations * len(STEPS)
    sizes = set()
    for folder in (done.output_dir / "simulations").iterdir():
        *_, last = sorted(folder.glob("attempt-*"))
        dump = read_dump(last / "dump.txt")
        for step in STEPS:
            sample = dict(samples)[int(folder.name), step]
            rows = np.column_stack([sample[name] for name in ("id", "x", "v", "neighbours")])
            np.testing.assert_array_equal(rows, dump[step])
            sizes.add(len(rows))
    assert len(sizes) > 3


def test_the_example_learns_on_two_ranks_from_the_atoms_that_dump_writes(
    droplet: Callable[..., Path], client: Path, tmp_path: Path
) -> None:
    small = {
        "buffer.watermark": 10,
        "training.batch_size": 5,
        "training.draws_per_sample": 15,
        "validation.every_batches": None,
        "validation.at": [2],
    }
    done = run_study(
        droplet(),
        tmp_path / "run",
        num_ranks=NUM_SERVER_RANKS,
        settings=settings_of(client, small),
        environment=AS_ROOT,
        limit_s=200,
    )
    assert_all_finished(done, num_simulations=3)
    assert_each_once_as_dumped(done, num_simulations=3)
    first, last = first_and_last_loss(done)
    assert last < first / 2


def test_each_sample_arrives_once_when_a_rank_of_lammps_and_the_server_are_killed(
    droplet: Callable[..., Path], client: Path, tmp_path: Path
) -> None:
    study = droplet(HALVES)
    (study.parent / "server.py").write_text(SERVER)
    (tmp_path / "trouble.py").write_text(TROUBLE)
    settings = settings_of(client, OF_MEAN)
    settings["simulation.job.environment"]["PYTHONPATH"] += f":{tmp_path}"
    options: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "environment": AS_ROOT}
    with start_study(study, tmp_path / "run", settings=settings, **options) as live:
        live.wait_until((tmp_path / "half-way").exists)
        live.ranks[0].kill()
        live.wait_until(lambda: "incarnation 2" in live.launcher_log)
        (tmp_path / "go").touch()
        done = live.end(200)
    assert_all_finished(done, num_simulations=3)
    # What had ended before, and was in no checkpoint, may have been computed again.
    assert done.attempts[1] >= 2
    assert done.attempts[2] == 1
    assert done.account["accepted"] == done.account["trained"] == 2 * len(STEPS)
    assert_each_once_as_dumped(done, num_simulations=3)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_signal_ends_a_study_of_lammps_on_two_ranks_and_leaves_no_lammps(
    droplet: Callable[..., Path], client: Path, tmp_path: Path, number: signal.Signals
) -> None:
    study = droplet("run 1000000\n")
    (study.parent / "server.py").write_text(SERVER)
    settings = settings_of(client, OF_MEAN | {"study.time_steps.last": 1_000_000})
    options: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "environment": AS_ROOT}
    with start_study(study, tmp_path / "run", settings=settings, **options) as live:
        live.wait_until(lambda: len(list(live.output_dir.glob("simulations/*/attempt-0/dump.txt"))) > 0)
        assert [it.name() for it in live.processes()].count("lmp") == 2
        live.process.send_signal(number)
        assert live.end().exit_code == EXIT_SAVED
