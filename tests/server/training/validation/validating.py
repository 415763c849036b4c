"""Validations without a study: a server whose loss is the mean of its values, and what surrounds it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from stream_server.config.training_sections import ValidationSettings
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.validation.validation import Validation
from stream_server.server.training.validation.validation_batches import HeldOut, HeldOutSamples
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.collate import NumpyCollate
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch

SETTINGS = {"after_batches", "at_start", "batch_size", "max_batches", "sets"}


class Model:
    """The step of a server without a model."""

    at_boundary = True

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def to_device(self, data: Any) -> Any:
        return data


class Written(Metrics):
    """The metrics of a rank that notes what it is given."""

    def __init__(self) -> None:
        super().__init__(SoloRanks())
        self.records: list[tuple[int, dict[str, float]]] = []

    def write_reduced(self, batch: int, wall_s: float, values: Mapping[str, float]) -> None:
        self.records.append((batch, dict(values)))


class Server:
    """A server whose loss of a batch is the mean of its values."""

    config = None
    collate = NumpyCollate(np.float64)

    def __init__(self, loader: Any = None) -> None:
        self.loader = loader
        self.normalization = Normalization(SoloRanks(), {"u": ()})
        self.heard: list[Any] = []

    def val_dataloader(self) -> Any:
        return self.loader

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.heard.append(batch.time_steps.tolist())
        batch.fields["x"] *= 2.0
        return batch.fields["x"]

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return float(np.mean(batch))

    def on_validation_start(self) -> None:
        self.heard.append("start")

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        self.heard.append(metrics)


def held_out(values: list[float], simulation: int = 0) -> HeldOut:
    """Samples of a held-out simulation with these values of the field x, one for each time step."""
    store = ValidationStore(simulation + 1)
    for step, value in enumerate(values):
        store.add(simulation, step, {"x": np.array(value)}, {"x": True})
    store.complete(simulation)
    found = HeldOutSamples(store=store, parameters_of=lambda it: np.zeros(1))()
    assert found is not None
    return found


def validation(server: Any, ranks: Ranks | None = None, values: list[float] | None = None, **kw: Any) -> Validation:
    server.union_mean = UnionMean(ranks or SoloRanks())
    defaults = {
        "held_out": lambda: None if values is None else held_out(values),
        "settings": ValidationSettings(**{"batch_size": 2} | {key: kw.pop(key) for key in SETTINGS & kw.keys()}),
        "schedules": {"": kw.pop("schedule", Schedule())} | kw.pop("schedules", {}),
        "progress": Progress(),
        "metrics": Written(),
    }
    return Validation(server, ranks or SoloRanks(), Callbacks(server), kw.pop("step", Model()), **(defaults | kw))


def at(batch: int, **counts: Any) -> Progress:
    """A training that has come to this batch."""
    progress = Progress()
    progress.batches = batch
    vars(progress).update(counts)
    return progress


def resume(one: Validation) -> None:
    """Call what the loop calls before the first batch."""
    one.on_train_start(None)
    one.on_round(None)


def step(one: Validation) -> None:
    """Call what the loop calls after a step, until the next round."""
    one.on_step_end(None)
    one.on_round(None)
