"""Checkpoints that hold a model and nothing else, and servers to make it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stream_server.config.training_sections import Load
from stream_server.server.checkpoint.folder import MODEL, STUDY, CheckpointFolder
from stream_server.server.checkpoint.saver import commit as commit_checkpoint
from stream_server.server.checkpoint.saver import write_files
from stream_server.server.checkpoint.user_state import user_file
from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.user.framework import Step, framework_of
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.folders import FolderWriter, PendingFile
from stream_server.storage.plain_state import write_state
from tests.support.checkpoint_stores import manifest_of, start
from tests.support.settings import settings
from tests.support.streams import batch_of


class Net(TorchServer):
    """A small network; its own state is a number."""

    width = 4
    mark = 0

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(2, self.width), nn.BatchNorm1d(self.width), nn.Linear(self.width, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=self.config.user.get("lr", 0.1))
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch) ** 2).mean()

    def state_dict(self) -> dict[str, Any]:
        return {"mark": self.mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mark = state["mark"]


def config_of(*, seed: int = 0, load: Mapping[str, Any] | None = None, **user: Any) -> Any:
    """A config with these keys of the section `load`."""
    config = settings(precision="32-true")
    config.study.seed = seed
    config.user = user
    config.load = Load(**(load or {}))
    return config


@contextmanager
def set_up(server: StreamServer) -> Iterator[Step]:
    """The server as it is when training begins."""
    with framework_of(server).make_step(server, SoloRanks()) as step:
        yield step


def train(step: Step, num: int) -> None:
    """So many steps, on the same batches each time."""
    for index in range(num):
        data = torch.randn(6, 2, generator=torch.Generator().manual_seed(index))
        union_batch = UnionBatch(own=batch_of(data, 6), sizes=(6,), counts=StepCounts(num_first=6))
        step.run(union_batch, step.to_device(data), index)


def commit(folder: Path, server: StreamServer, step: Step, normalization: Normalization | None = None) -> Path:
    """Save the model in checkpoint 1 of an output folder; gives the checkpoint's folder."""
    start(folder / "checkpoints")
    callbacks = {} if normalization is None else {"Normalization": normalization.state_dict()}
    checkpoints = CheckpointFolder(folder / "checkpoints")
    model, study = step.state_dict(), {"callbacks": callbacks, "parameters": list(server.parameter_names)}
    files = write_files(
        FolderWriter(checkpoints.temporary(1, 1)),
        [
            PendingFile(path=STUDY, write=lambda file: write_state(file, study)),
            PendingFile(path=MODEL, write=lambda file: write_state(file, model)),
            user_file(server, allow_pickle=False),
        ],
    )
    return commit_checkpoint(checkpoints, manifest_of(1, files))
