"""The Lorenz study (after arXiv 2211.04119): what a buffer does against the correlation of a running trajectory.

FIRO and Reservoir draw at random, and were found an order of magnitude apart at equal numbers of batches. So what
differs between them is varied one at a time: how many samples there are to draw from, by FIRO's watermark and the
Reservoir's capacity, and how often each is drawn. Training from files, in which every batch is drawn from all samples,
is the limit. Simulations run as fast as they can.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.published import offline
from benchmarks.published.runs import Run, from_files, online, overrides
from stream_server.config import StudyConfig, load
from stream_server.launcher.simulations.attempt_folders import simulation_seed
from stream_server.server.user.components import load_server_class

LORENZ = Path(__file__).parents[2] / "configs" / "lorenz"
STUDY = LORENZ / "study.json"
EPOCHS = (1, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class LorenzStudy:
    """The study with some number of simulations, of 1,000 time steps each, and a buffer of `capacity` samples."""

    unit: ClassVar[str] = "scaled changes²"
    clock: ClassVar[str] = "s, from files without the simulations"

    num_simulations: int = 40
    capacity: int = 4000

    def kinds(self) -> dict[str, dict[str, Any]]:
        """The buffers that are compared, as overrides of study.json."""
        few, many = self.capacity // 4, self.capacity - self.capacity // 40

        def with_buffer(policy: str, draws: int | None = None, **settings: int) -> dict[str, Any]:
            buffer = {"policy": policy, "capacity": self.capacity, **settings}
            return {"study.simulations": self.num_simulations, "buffer": buffer, "training.draws_per_sample": draws}

        return {
            "fifo": with_buffer("fifo"),
            f"firo, watermark {few}": with_buffer("firo", watermark=few),
            f"firo, watermark {many}": with_buffer("firo", watermark=many),
            f"reservoir of {few}, 1 draw": with_buffer("reservoir", 1, capacity=few, watermark=few // 2),
            "reservoir, 1 draw": with_buffer("reservoir", 1, watermark=few),
            "reservoir, 8 draws": with_buffer("reservoir", 8, watermark=few),
        }

    def rounds(self, seeds: int) -> Iterator[Run]:
        """Every way to train once for each seed; the seeds are the outer loop."""
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
                for number, (kind, settings) in enumerate(self.kinds().items()):
                    yield online(STUDY, kind, settings, seed, Path(folder) / str(number))
            for epochs in EPOCHS:
                yield self.from_files(epochs, seed)

    def from_files(self, epochs: int, seed: int) -> Run:
        """Simulate into a file and train from it; the time is that of the training alone."""
        config = load(STUDY, overrides({"study.simulations": self.num_simulations, "study.seed": seed}))
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            training, held_out = offline.simulate(config, Path(folder), changes)
            course = list(offline.train(config, offline.learner(config), training, held_out, epochs))
        return from_files(course, num_samples=len(training[0]), epochs=epochs, seed=seed)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All steps of one simulation, with the two attributes that the server class reads."""

    fields: Mapping[str, np.ndarray[Any, Any]]
    parameters: np.ndarray[Any, Any]


def changes(config: StudyConfig, simulation: int, parameters: Mapping[str, float]) -> offline.Samples:
    """The inputs and changes of one simulation, scaled as the server class does it."""
    sys.path.insert(0, str(LORENZ))
    from lorenz import trajectory

    seed = simulation_seed(config.study.seed, simulation)
    steps = np.array(list(trajectory(seed, *parameters.values())))
    constants = np.tile(np.array(list(parameters.values())), (len(steps), 1))
    batch = Trajectory({"state": steps[:, 0], "next_state": steps[:, 1]}, constants)
    inputs, outputs = load_server_class(config)(config).process_batch(batch, config)  # type: ignore[arg-type]
    return inputs.astype(np.float32), outputs.astype(np.float32)
