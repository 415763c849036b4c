"""Training from files, the alternative: simulate into a file, then train from it with torch's DataLoader.

The parameters, the held-out simulations, the network, the optimizer, the schedule and the batch size are those of the
study. All samples are in one memory-mapped array, the quickest file there is; it stays in the page cache.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stream_server.config import StudyConfig
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.user.components import load_server_class

NUM_TRIED = 50

# The inputs of the network, and what it is to give, of all time steps.
Samples = tuple[NDArray[np.float32], NDArray[np.float32]]


def simulate(
    config: StudyConfig, folder: Path, samples_of: Callable[[StudyConfig, int, Mapping[str, float]], Samples]
) -> tuple[Samples, Samples]:
    """The training and the held-out samples of a study: inputs in memory, outputs in a file in `folder`.

    `samples_of` makes those of one simulation from its number and its parameters; as many processes call it as the
    study runs simulations at once.
    """
    design = ParameterDesign(config)
    num_held_out, num = config.validation.simulations, config.study.simulations
    found = []
    with ProcessPoolExecutor(config.launcher.max_running) as pool:
        for name, ids in (("held-out", range(num_held_out)), ("training", range(num_held_out, num_held_out + num))):
            every = []
            file = folder / f"{name}.raw"
            with file.open("wb") as output:
                for inputs, outputs in pool.map(samples_of, repeat(config), ids, map(design.parameters, ids)):
                    every.append(inputs)
                    output.write(outputs.tobytes())
            inputs = np.concatenate(every)
            found.append((inputs, np.memmap(file, np.float32, mode="r", shape=(len(inputs), outputs.shape[1]))))
    held_out, training = found
    return training, held_out


class FileDataset(Dataset[tuple[NDArray[np.float32], NDArray[np.float32]]]):
    """One sample per index."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples[0])

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        inputs, fields = self._samples
        # A copy, since the DataLoader makes tensors that can be written to.
        return inputs[index], np.array(fields[index])


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """A network with its optimizer and schedules; `loss` gives the mean over some samples, of inputs and outputs."""

    loss: Loss
    optimizer: torch.optim.Optimizer
    schedulers: Sequence[Any]


def learner(config: StudyConfig) -> Learner:
    """The network of the server class, which maps inputs to outputs, by the mean squared error."""
    torch.manual_seed(config.study.seed)
    server = load_server_class(config)(config)
    server.parameter_names = ParameterDesign(config).names  # type: ignore[misc]
    model, optimizer, *schedulers = server.prepare_training_attributes()  # type: ignore[misc]
    return Learner(
        loss=lambda inputs, outputs: functional.mse_loss(model(inputs), outputs),
        optimizer=optimizer,
        schedulers=schedulers,
    )


def train(
    config: StudyConfig, learner: Learner, training: Samples, held_out: Samples, epochs: int
) -> Iterator[dict[str, Any]]:
    """Train for some epochs; gives batches, seconds and error at each validation, and at the end."""
    torch.manual_seed(config.study.seed)
    loader = DataLoader(FileDataset(training), batch_size=config.training.batch_size, shuffle=True)
    every, batch = config.validation.every_batches, 0
    if isinstance(every, float):
        every = max(1, round(every * epochs * len(loader)))
    set_quickest_threads(learner, loader)
    start_s = time.monotonic()

    def record() -> dict[str, Any]:
        return {"batch": batch, "wall_s": time.monotonic() - start_s, "mse": error(learner.loss, config, held_out)}

    for _ in range(epochs):
        for inputs, outputs in loader:
            learner.optimizer.zero_grad()
            learner.loss(inputs, outputs).backward()
            learner.optimizer.step()
            for scheduler in learner.schedulers:
                scheduler.step()
            batch += 1
            if batch % every == 0:
                yield record()
    if batch % every:
        yield record()


def set_quickest_threads(learner: Learner, loader: DataLoader[Any]) -> None:
    """Give torch one thread or all cores, whichever is quicker here: simulations leave the cores free."""
    inputs, outputs = next(iter(loader))
    took_s = {}
    for num_threads in (torch.get_num_threads(), 1):
        torch.set_num_threads(num_threads)
        start_s = time.monotonic()
        for _ in range(NUM_TRIED):
            learner.loss(inputs, outputs).backward()
        took_s[num_threads] = time.monotonic() - start_s
    learner.optimizer.zero_grad()
    torch.set_num_threads(min(took_s, key=lambda num: took_s[num]))


def error(loss: Loss, config: StudyConfig, held_out: Samples) -> float:
    """The mean loss of the held-out samples."""
    inputs, outputs = held_out
    size, total = config.validation.batch_size, 0.0
    with torch.no_grad():
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            truth = torch.from_numpy(np.array(outputs[rows]))
            total += float(loss(torch.from_numpy(inputs[rows]), truth)) * len(truth)
    return total / len(inputs)
