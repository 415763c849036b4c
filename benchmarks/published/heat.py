"""The heat study of SC'23 (arXiv 2309.16743) at its small scale, by each buffer policy, beside training from files.

Simulations are paced, so that the Reservoir draws each sample as often as there (about 20 times), whatever the speed
of this machine: `benchmarks.training_alone` measures how fast the training is, and a time step takes accordingly long,
validations counted. Training from files has one epoch, and as many as the Reservoir draws. Its time is that of the
paced simulations, which must have ended before, and that of the training.
"""

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.published import offline
from benchmarks.published.runs import Run, from_files, online, output_of, overrides
from stream_server.config import StudyConfig, load

HEAT = Path(__file__).parents[2] / "configs" / "heat"
STUDY = HEAT / "small-scale.json"
PACED = Path(__file__).with_name("paced.py")
POLICIES = ("fifo", "firo", "reservoir", "uniform")
PARAMETERS = ("initial", "left", "right", "bottom", "top")
NUM_STEPS = 100
SPEED_S = 10.0
# What a batch of a validation takes, with predictions kept, of the time of one of the training (0.34 measured).
VALIDATION = 0.34


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatStudy:
    """The study at some size; the Reservoir is to draw a sample `draws` times, `step_s` is what a time step takes."""

    unit: ClassVar[str] = "K²"
    clock: ClassVar[str] = "s, simulations included"

    num_simulations: int = 100
    num_nodes: int = 100
    capacity: int = 2500
    draws: int = 20
    step_s: float = 0.0

    def settings(self, policy: str = "reservoir") -> dict[str, Any]:
        """Overrides of study.json."""
        watermark = {} if policy == "fifo" else {"watermark": self.capacity // 5}
        command = [sys.executable, str(PACED), "--step-s", repr(self.step_s), "--size", str(self.num_nodes)]
        return {
            "study.simulations": self.num_simulations,
            "study.fields": {"temperature": {"shape": [self.num_nodes] * 2, "dtype": "float32"}},
            "buffer": {"policy": policy, "capacity": self.capacity, **watermark},
            "simulation.command": command + [word for name in PARAMETERS for word in (f"--{name}", f"{{{name}}}")],
        }

    def paced(self, batches_per_s: float) -> "HeatStudy":
        """The study in which so fast a training draws `draws` samples for each that comes."""
        config = load(STUDY)
        held_out, size = config.validation, config.training.batch_size
        validated = held_out.simulations * NUM_STEPS / held_out.batch_size / held_out.every_batches
        drawn_per_s = batches_per_s / (1 + VALIDATION * validated) * size
        return replace(self, step_s=config.launcher.max_running * self.draws / drawn_per_s)

    @property
    def simulations_s(self) -> float:
        """The time that all simulations of a run take, held-out ones included."""
        config = load(STUDY)
        num = self.num_simulations + config.validation.simulations
        return num * NUM_STEPS * self.step_s / config.launcher.max_running

    def rounds(self, seeds: int) -> Iterator[Run]:
        """Every way to train once for each seed; the seeds are the outer loop."""
        study = self
        if not self.step_s:
            speed = batches_per_s(self)
            study = self.paced(speed)
            print(
                f"the training alone takes {speed:.1f} batches/s, so a time step takes {study.step_s:.4f} s; a run "
                f"about {study.simulations_s / 60:.1f} minutes, {(len(POLICIES) + 2) * seeds} runs",
                flush=True,
            )
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
                for policy in POLICIES:
                    yield online(STUDY, policy, study.settings(policy), seed, Path(folder) / policy)
            for epochs in (1, self.draws):
                yield study.from_files(epochs, seed)

    def from_files(self, epochs: int, seed: int) -> Run:
        """Simulate into a file and train from it."""
        config = load(STUDY, overrides(self.settings() | {"study.seed": seed}))
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            training, held_out = offline.simulate(config, Path(folder), solutions)
            course = [
                record | {"wall_s": record["wall_s"] + self.simulations_s}
                for record in offline.train(config, offline.learner(config), training, held_out, epochs)
            ]
        return from_files(course, num_samples=len(training[0]), epochs=epochs, seed=seed)


def batches_per_s(study: HeatStudy, seconds: float = SPEED_S) -> float:
    """How fast one rank trains when data costs nothing."""
    alone = [sys.executable, "-m", "benchmarks.training_alone", str(STUDY), f"--seconds={seconds}"]
    done = output_of(alone, study.settings())
    found = re.search(r"speed +([0-9.,]+) batches/s", done)
    assert found is not None, done
    return float(found[1].replace(",", ""))


def solutions(config: StudyConfig, simulation: int, parameters: Mapping[str, float]) -> offline.Samples:
    """The inputs and temperatures of one simulation."""
    sys.path.insert(0, str(HEAT))
    from heat import solve

    size = config.study.fields["temperature"].shape[0]
    fields = [temperature.reshape(-1) for temperature in solve(size=size, **parameters)]
    inputs = [(*parameters.values(), step) for step in range(NUM_STEPS)]
    return np.array(inputs, np.float32), np.array(fields, np.float32)
