"""The heat study of SC'23 (arXiv 2309.16743) at its small scale: FIFO, FIRO and Reservoir, beside training from files.

Simulations are paced, so that the Reservoir draws each sample as often as there (about 20 times), whatever the speed
of this machine: `--fake-data` measures how fast the training is, and a time step takes accordingly long. Training from
files has one epoch, and as many as the Reservoir draws. Its time is that of the paced simulations, which must have
ended before, and that of the training.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.published import offline
from stream_server.analysis.reading import RunFolder, read_records
from stream_server.config import load

STUDY = Path(__file__).parents[2] / "configs" / "heat" / "small-scale.json"
PACED = Path(__file__).with_name("paced.py")
POLICIES = ("fifo", "firo", "reservoir")
PARAMETERS = ("initial", "left", "right", "bottom", "top")
NUM_STEPS = 100
SPEED_S = 10.0
DEADLINE_S = 7200.0

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatStudy:
    """The study at some size; `step_s` is what a paced time step takes."""

    num_simulations: int
    num_nodes: int
    capacity: int
    step_s: float = 0.0

    def settings(self, seed: int, policy: str = "reservoir") -> dict[str, Any]:
        """Overrides of study.json."""
        watermark = {} if policy == "fifo" else {"watermark": self.capacity // 5}
        command = [sys.executable, str(PACED), "--step-s", repr(self.step_s), "--size", str(self.num_nodes)]
        return {
            "study.simulations": self.num_simulations,
            "study.fields": {"temperature": {"shape": [self.num_nodes] * 2, "dtype": "float32"}},
            "study.seed": seed,
            "buffer": {"policy": policy, "capacity": self.capacity, **watermark},
            "simulation.command": command + [word for name in PARAMETERS for word in (f"--{name}", f"{{{name}}}")],
        }

    def paced(self, draws: float, batches_per_s: float) -> "HeatStudy":
        """The study in which the training draws so many samples for each that comes."""
        config = load(STUDY)
        step_s = config.launcher.max_running * draws / (batches_per_s * config.training.batch_size)
        return HeatStudy(
            num_simulations=self.num_simulations, num_nodes=self.num_nodes, capacity=self.capacity, step_s=step_s
        )

    @property
    def simulations_s(self) -> float:
        """The time that all simulations of a run take, held-out ones included."""
        config = load(STUDY)
        num = self.num_simulations + config.validation.simulations
        return num * NUM_STEPS * self.step_s / config.launcher.max_running


def batches_per_s(study: HeatStudy, seconds: float = SPEED_S) -> float:
    """How fast one rank trains when data costs nothing."""
    done = _server(study.settings(0), f"--fake-data={seconds}")
    found = re.search(r"speed +([0-9.,]+) batches/s", done)
    assert found is not None, done
    return float(found[1].replace(",", ""))


def online(study: HeatStudy, policy: str, seed: int, output: Path) -> tuple[Row, list[Row]]:
    """Run the study with a policy: the result, and its course."""
    _server(study.settings(seed, policy) | {"study.output_dir": str(output)}, "--fresh")
    report = json.loads((output / "report.json").read_text())
    assert report["balanced"], report["unbalanced"]
    records = read_records(RunFolder(output))
    keys = {"val/loss": "mse", "buffer/population": "population", "speed/samples_per_s": "samples_per_s"}
    course = [
        {"batch": record["batch"], "wall_s": record["wall_s"]}
        | {name: record[key] for key, name in keys.items() if key in record}
        for record in records
    ]
    draws = report["draws"] / report["samples"]["trained"]
    return _result(policy, seed, course, draws, report["wall_s"], report["draws"]), course


def from_files(study: HeatStudy, epochs: int, seed: int) -> tuple[Row, list[Row]]:
    """Simulate into a file and train from it: the result, and its course."""
    overrides = [f"{name}={json.dumps(value)}" for name, value in study.settings(seed).items()]
    config = load(STUDY, overrides)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        training, held_out = offline.simulate(config, Path(folder))
        course = []
        for record in offline.train(config, training, held_out, epochs):
            course.append(record | {"wall_s": record["wall_s"] + study.simulations_s})
    num_draws = epochs * len(training[0])
    name = "offline, 1 epoch" if epochs == 1 else f"offline, {epochs} epochs"
    return _result(name, seed, course, epochs, course[-1]["wall_s"], num_draws), course


def rounds(study: HeatStudy, *, seeds: int, draws: int) -> Iterator[tuple[Row, list[Row]]]:
    """Every way to train once for each seed; the seeds are the outer loop."""
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            for policy in POLICIES:
                yield online(study, policy, seed, Path(folder) / policy)
        for epochs in (1, draws):
            yield from_files(study, epochs, seed)


def _result(kind: str, seed: int, course: list[Row], draws: float, wall_s: float, num_draws: int) -> Row:
    errors = [it["mse"] for it in course if "mse" in it]
    return {
        "kind": kind,
        "seed": seed,
        "mse": errors[-1],
        "best_mse": min(errors),
        "draws_per_sample": draws,
        "batches": course[-1]["batch"],
        "wall_s": wall_s,
        "samples_per_s": num_draws / wall_s,
    }


def _server(settings: Mapping[str, Any], *options: str) -> str:
    program = str(Path(sys.executable).with_name("stream-server"))
    overrides = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    argv = [program, f"--config={STUDY}", *overrides, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}\nended with {done.returncode}:\n{done.stderr}")
    return done.stdout
