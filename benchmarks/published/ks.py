"""A study of trajectories, the Kuramoto-Sivashinsky equation of configs/ks, by windows, beside training from files.

Each simulation sends its steps once; the training forecasts two steps from the first of a window. Whatever draws each
window ten times has ten times as many batches. Two persistent workers compute as fast as they can. For the training
from files as many processes solve without any start-up, and their time counts, since the training begins when all have
ended.
"""

import runpy
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.published import offline
from benchmarks.published.runs import Run, from_files, online, overrides
from stream_server.config import StudyConfig, load
from stream_server.user_code import load_class

KS = Path(__file__).parents[2] / "configs" / "ks"
STUDY = KS / "study.json"
DRAWS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class KsStudy:
    """The study with some number of simulations, and a buffer of `capacity` windows."""

    unit: ClassVar[str] = "scaled changes²"
    clock: ClassVar[str] = "s, simulations included"

    num_simulations: int = 160
    capacity: int = 1000

    def kinds(self) -> dict[str, dict[str, Any]]:
        """The buffers that are compared, as overrides of study.json."""

        def with_buffer(policy: str, draws: int | None = None, **settings: int) -> dict[str, Any]:
            return {
                "study.simulations": self.num_simulations,
                "simulation.per_worker": "many",
                "buffer": {"policy": policy, "capacity": self.capacity, **settings},
                "training.draws_per_sample": draws,
            }

        watermark = self.capacity // 5
        return {
            "fifo": with_buffer("fifo"),
            f"firo, {DRAWS} draws": with_buffer("firo", watermark=watermark, pseudo_epochs=DRAWS),
            f"reservoir, {DRAWS} draws": with_buffer("reservoir", DRAWS, watermark=watermark),
            f"uniform, {DRAWS} draws": with_buffer("uniform", DRAWS, watermark=watermark),
        }

    def rounds(self, seeds: int) -> Iterator[Run]:
        """Every way to train once for each seed; the seeds are the outer loop."""
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
                for number, (kind, settings) in enumerate(self.kinds().items()):
                    yield online(STUDY, kind, settings, seed, Path(folder) / str(number))
            for epochs in (1, DRAWS):
                yield self.from_files(epochs, seed)

    def from_files(self, epochs: int, seed: int) -> Run:
        """Simulate into a file and train from it."""
        config = load(STUDY, overrides({"study.simulations": self.num_simulations, "study.seed": seed}))
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            start_s = time.monotonic()
            training, held_out = offline.simulate(config, Path(folder), windows)
            simulations_s = time.monotonic() - start_s
            learner = forecaster(config, num_batches=epochs * -(-len(training[0]) // config.training.batch_size))
            course = [
                record | {"wall_s": record["wall_s"] + simulations_s}
                for record in offline.train(config, learner, training, held_out, epochs)
            ]
        return from_files(course, num_samples=len(training[0]), epochs=epochs, seed=seed)


def windows(config: StudyConfig, simulation: int, parameters: Mapping[str, float]) -> offline.Samples:
    """The windows of one simulation: the first states, each with the parameters behind it, and the states to forecast.

    Shapes (n, nodes + P) and (n, forecasts × nodes).
    """
    states = np.array([it["u"] for it in runpy.run_path(str(KS / "ks.py"))["solve"](parameters)], np.float32)
    num_targets = config.samples.window.length - 1
    num = len(states) - num_targets
    constants = np.tile(np.array(list(parameters.values()), np.float32), (num, 1))
    targets = [states[1 + lead : 1 + lead + num] for lead in range(num_targets)]
    return np.concatenate((states[:num], constants), axis=1), np.concatenate(targets, axis=1)


def forecaster(config: StudyConfig, num_batches: int) -> offline.Learner:
    """The network, optimizer and schedule of study.json, and the loss of its server class."""
    torch.manual_seed(config.study.seed)
    parts = config.training
    model = load_class(parts.model.class_, config.study_dir, kind="training.model.class")(**parts.model.args)
    optimizer = torch.optim.Adam(model.parameters(), **parts.optimizer.args)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=parts.lr_scheduler.args["max_lr"], total_steps=num_batches
    )
    num_nodes = config.study.fields["u"].shape[0]

    def loss(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        state, parameters = inputs[:, None, :num_nodes], inputs[:, num_nodes:]
        forecasts = []
        for _ in range(outputs.shape[1] // num_nodes):
            state = model(state, parameters)
            forecasts.append(state[:, 0])
        return ((torch.cat(forecasts, dim=1) - outputs) / model.change_scale.item()).square().mean()

    return offline.Learner(loss=loss, optimizer=optimizer, schedulers=[schedule])
