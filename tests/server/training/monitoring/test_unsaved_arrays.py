"""Arrays that a training changes, and that no checkpoint has."""

import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.unsaved_arrays import UnsavedArrays
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import framework_of
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Scaling(nn.Module):
    """Learns the scale of what it is given, which is kept in a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.register_buffer("nodes", torch.ones(3), persistent=False)
        self.largest = torch.zeros(1)

    def forward(self, x: Any) -> Any:
        self.largest = torch.maximum(self.largest, x.abs().max())
        self.scale.mul_(0.9).add_(0.1 * x.abs().mean())
        return self.layer(x) / self.scale


class Reparametrised(nn.Module):
    """Its weights are computed from those that are saved, by the ways of torch that put them beside these."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.utils.weight_norm(nn.Linear(1, 2))
        self.bounded = nn.utils.spectral_norm(nn.Linear(2, 2))
        self.pruned = prune.l1_unstructured(nn.Linear(2, 1), "weight", amount=1)

    def forward(self, x: Any) -> Any:
        return self.pruned(self.bounded(self.normed(x)))


class Averaging(TorchServer):
    """Keeps averages of its weights in a dict, and constants, results and modules beside them."""

    def prepare_training_attributes(self) -> Any:
        model = self.make_model()
        self.constants = [np.ones(3), {"mask": torch.ones(2)}]
        self.itself: list[Any] = [model]
        self.itself.append(self.itself)
        self.sparse = torch.eye(2).to_sparse()
        self.head = nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def make_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def on_train_start(self) -> None:
        self.alias = [*self.model.parameters()]
        self.ema = {name: it.detach().clone() for name, it in self.model.named_parameters()}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.last = batch
        return self.model(batch).mean()

    def on_step_end(self) -> None:
        for name, it in self.model.named_parameters():
            self.ema[name] = 0.9 * self.ema[name] + 0.1 * it.detach()


class AveragingAndSaving(Averaging):
    def state_dict(self) -> Any:
        return {"ema": self.ema}


class AveragingByRank(Averaging):
    def rank_state_dict(self) -> Any:
        return {"ema": self.ema}


class Rescaling(AveragingAndSaving):
    def make_model(self) -> nn.Module:
        return Scaling()


class Normed(AveragingAndSaving):
    def make_model(self) -> nn.Module:
        return Reparametrised()


class Plain(StreamServer):
    """Saves its weight, and not its momentum."""

    saved = ("weight",)

    def prepare_training_attributes(self) -> None:
        self.weight, self.momentum, self.counts = np.zeros(2), np.zeros(2), np.zeros(2, int)

    def training_step(self, batch: Any, batch_idx: int) -> float:
        self.momentum += 1.0
        self.counts += 1
        self.weight -= 0.1 * self.momentum
        return 0.5

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).copy() for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class PlainAndWhole(Plain):
    saved = ("weight", "momentum")


class Ema(Callback):
    """Averages in a callback."""

    def __init__(self) -> None:
        self.mean = np.zeros(1)

    def on_step_end(self, server: Any) -> None:
        self.mean += 1


class SavedEma(Ema):
    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}


@pytest.mark.parametrize(
    ("kind", "callback", "names"),
    [
        (Averaging, Callback, "ema.weight, ema.bias"),
        (AveragingAndSaving, Callback, None),
        (AveragingByRank, Callback, None),
        (Rescaling, Callback, "largest, scale"),
        pytest.param(Normed, Callback, None, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
        (Plain, Callback, "momentum"),
        (PlainAndWhole, Callback, None),
        (PlainAndWhole, Ema, "Ema.mean"),
        (PlainAndWhole, SavedEma, None),
    ],
)
def test_what_changes_and_is_in_no_checkpoint_is_named_once(
    kind: type[StreamServer], callback: type[Callback], names: str | None
) -> None:
    server = kind(settings())
    callbacks = Callbacks(server, [callback()])
    with framework_of(server).make_step(server, SoloRanks()) as step:
        unsaved = UnsavedArrays(step, callbacks)
        callbacks.surround(after=[unsaved])
        callbacks.tell("on_train_start")
        for index in range(2):
            data = torch.full((2, 1), index + 2.0, dtype=torch.float64)
            step.run(UnionBatch(own=batch_of(data, 2), sizes=(2,), counts=StepCounts(num_first=2)), data, index)
            callbacks.tell("on_step_end")
            callbacks.tell("on_checkpoint", Path())
        told_at_a_checkpoint = list(unsaved.warnings)
        callbacks.tell("on_train_end")
    assert unsaved.warnings == told_at_a_checkpoint
    begins = (
        []
        if names is None
        else [f"the training changes {names} of {kind.__name__}, which no checkpoint has: a restart"]
    )
    assert [text[: len(start)] for text, start in zip(unsaved.warnings, begins, strict=True)] == begins


class Penalised(Averaging):
    """Keeps a multiplier, its history, numbers in its model, and a time, as numbers of Python."""

    saves = False

    def prepare_training_attributes(self) -> Any:
        made = super().prepare_training_attributes()
        self.multiplier, self.history, self.begun_s = 0.0, deque(maxlen=3), time.monotonic()
        self.generators = {"numpy": np.random.default_rng(0), "python": random.Random(0), "unused": random.Random(0)}
        self.key, self.torch_generator = np.zeros(2, np.uint32), torch.Generator()
        self.model = made[0]
        self.model.num_calls = 0
        return made

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.multiplier += 0.5
        self.history.append(self.multiplier)
        self.model.num_calls += 1
        self.key = self.key + 1
        self.generators["numpy"].normal()
        self.generators["python"].random()
        torch.rand(2, generator=self.torch_generator)
        self.loss = 0.5
        return super().training_step(batch, batch_idx)

    def state_dict(self) -> Any:
        return {"multiplier": self.multiplier, "history": list(self.history)} if self.saves else {}

    def load_state_dict(self, state: Any) -> None:
        vars(self).update(state)


class PenalisedAndSaving(Penalised):
    saves = True


class PenalisedByRank(Penalised):
    """Takes over the state of another rank, too."""

    def rank_state_dict(self) -> Any:
        return {"multiplier": self.multiplier, "history": list(self.history)}

    def load_state_dict(self, state: Any) -> None:
        self.multiplier, self.history = 7.0, deque([7.0])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (PenalisedByRank, "key, generators.numpy, generators.python, torch_generator, …"),
        (Penalised, "multiplier, history, key, generators.numpy, …"),
        (PenalisedAndSaving, "key, generators.numpy, generators.python, torch_generator, …"),
    ],
)
def test_a_restart_tells_of_numbers_that_begin_anew(kind: type[Penalised], names: str) -> None:
    told, saved, own_state = [], {}, {}
    for num_starts in range(2):
        server = kind(settings())
        callbacks = Callbacks(server, [])
        with framework_of(server).make_step(server, SoloRanks()) as step:
            server.load_state_dict(own_state)
            unsaved = UnsavedArrays(step, callbacks)
            unsaved.load_state_dict(saved)
            unsaved.on_train_start(server)
            told += unsaved.warnings
            for index in range(2 + num_starts):
                data = torch.full((2, 1), index + 2.0, dtype=torch.float64)
                step.run(UnionBatch(own=batch_of(data, 2), sizes=(2,), counts=StepCounts(num_first=2)), data, index)
            saved, own_state = from_bytes(to_bytes(unsaved.state_dict())), server.state_dict()
    assert [text.split(" had other")[0] for text in told] == [f"{names} of {kind.__name__}"]
    of_generators = {"generators.numpy", "generators.python", "torch_generator"}
    assert saved.keys() == {"multiplier", "history", "num_calls", "key", *of_generators}
