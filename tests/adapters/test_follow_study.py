"""A study on a code of scikit-fem that is followed, while its processes are killed."""

import runpy
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from stream_server.server.replay.record_format import SAMPLES, EntryKind
from stream_server.server.replay.record_reader import RankRecord
from tests.configs.test_studies import CONFIGS, assert_all_finished
from tests.support.runs import LiveRun, Run, start_study

STUDY = CONFIGS / "heat-fem" / "study.json"
NUM_SIMULATIONS, NUM_STEPS, BATCH_SIZE = 3, 50, 10
SERVER = """
import numpy as np
from stream_server import StreamServer


class Averaging(StreamServer):
    def prepare_training_attributes(self):
        self.mean = np.zeros(225)

    def process_simulation_data(self, data, config):
        return data.fields["temperature"]

    def training_step(self, batch, batch_idx):
        (error,) = self.all_reduce([np.mean(batch, axis=0) - self.mean])
        self.mean += 0.1 * error
        return float(np.mean(error**2))

    def validation_step(self, batch, batch_idx):
        return float(np.mean((batch - self.mean) ** 2))

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]
"""
Key = tuple[int, int]
# Runs a program as it is, whose first attempt stands still with a step's file half-way, so that it can be killed there.
HELD_AT = 20
HELD = f"""
import runpy, sys, time
from pathlib import Path
import skfem

save = skfem.MeshTri.save


def hold(mesh, path, **data):
    if path.endswith("_{HELD_AT:04d}.vtk") and "attempt-0" in str(Path.cwd()):
        Path(path).write_bytes(b"# vtk DataFile Version 5.1")
        while not Path("go").exists():
            time.sleep(0.02)
    save(mesh, path, **data)


skfem.MeshTri.save = hold
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def recorded(
    done: Run,
) -> tuple[dict[tuple[int, int], NDArray[Any]], dict[int, NDArray[Any]], Counter[tuple[int, int]]]:
    """The samples that the server has, the parameters of each simulation, and how often each sample is recorded."""
    fields, parameters, counts = {}, {}, Counter[Key]()
    record = RankRecord(done.output_dir / "record", 0)
    for entry in map(record.read, range(len(record))):
        if entry.kind in SAMPLES:
            key = entry.simulation, entry.time_step
            fields[key] = entry.fields["temperature"]
            counts[key] += 1
        elif entry.kind is EntryKind.PARAMETERS:
            parameters[entry.simulation] = entry.parameters
    record.close()
    return fields, parameters, counts


def first_attempt(live: LiveRun | Run, simulation: int) -> Path:
    return live.output_dir / "simulations" / str(simulation) / "attempt-0"


def is_held(live: LiveRun, simulation: int) -> bool:
    return (first_attempt(live, simulation) / "out" / f"heat_{HELD_AT:04d}.vtk").exists()


def kill(live: LiveRun, simulation: int, program: str) -> None:
    """Kill a process of the first attempt of a simulation, by the name of its program."""
    for process in live.processes():
        with suppress(psutil.Error, FileNotFoundError):
            is_in_it = process.cwd() == str(first_attempt(live, simulation))
            if (
                is_in_it
                and any(word.endswith(program) for word in process.cmdline()[:6])
                and (
                    program == "stream-follow" or not any(word.endswith("stream-follow") for word in process.cmdline())
                )
            ):
                process.kill()


def test_solver_follower_and_server_are_killed_and_each_sample_comes_once(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "held.py").write_text(HELD)
    settings = {
        "study.simulations": NUM_SIMULATIONS - 1,
        "validation.simulations": 1,
        "simulation.command": [
            *("stream-follow", "out/heat_*.vtk", "--field", "temperature=u", "--delete", "--"),
            *("python", str(tmp_path / "held.py"), "heat.py", "--initial", "{initial}", "--wall", "{wall}"),
        ],
        "simulation.keep_folders": "all",
        "launcher.max_running": NUM_SIMULATIONS,
        "server.class": f"{tmp_path / 'server.py'}:Averaging",
        "buffer": {"policy": "fifo", "capacity": 100},
        "training.draws_per_sample": None,
        "training.batch_size": BATCH_SIZE,
        "checkpoint.every_batches": 1,
        "checkpoint.record": True,
    }
    options: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "settings": settings}
    with start_study(STUDY, tmp_path / "run", **options) as live:
        for simulation in range(NUM_SIMULATIONS):
            live.wait_until(partial(is_held, live, simulation), limit_s=100)
            # The first step is in a checkpoint then.
            first = first_attempt(live, simulation) / "out" / "heat_0000.vtk"
            live.wait_until(lambda first=first: not first.exists())
        live.ranks[0].kill()
        kill(live, 0, "held.py")
        kill(live, 1, "stream-follow")
        (first_attempt(live, 2) / "go").touch()
        done = live.end(200)
    assert_all_finished(done, num_simulations=NUM_SIMULATIONS)
    assert done.attempts == {0: 2, 1: 2, 2: 1}
    assert done.report["restarts"] == 1
    assert done.account["accepted"] == done.account["trained"] == (NUM_SIMULATIONS - 1) * NUM_STEPS
    fields, parameters, counts = recorded(done)
    assert counts == Counter((each, step) for each in range(NUM_SIMULATIONS) for step in range(NUM_STEPS))
    solve = runpy.run_path(str(STUDY.parent / "heat.py"))["solve"]
    for simulation, values in parameters.items():
        _, steps = solve(*values, NUM_STEPS, 3)
        for step, temperatures in enumerate(steps):
            assert np.array_equal(fields[simulation, step], temperatures.astype(np.float32))
