"""Run under MPI: rank 1 fails, in the way that the second argument names; the first is the output folder."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.failure import leave_together
from stream_server.server.ranks import ranks_from_environment
from stream_server.server.training.lockstep import Turn, in_lockstep
from stream_server.server.training.phases import Phases
from stream_server.server.training.stop import StopRequests
from tests.server.settings import settings
from tests.server.streams import ScriptedStream, batch_of

RANKS = ranks_from_environment()
OUTPUT_DIR, WAY = Path(sys.argv[1]), sys.argv[2]


def in_lockstep_with(stream: ScriptedStream) -> Iterator[Turn]:
    return in_lockstep(stream, RANKS, StopRequests(), phases=Phases())


def train() -> None:
    for _ in in_lockstep_with(ScriptedStream([batch_of(None, 1)] * 3)):
        if RANKS.rank == 1:
            raise UserCodeError("Net.training_step raised ValueError: no")
        if WAY == "inside_a_step":
            RANKS.all_reduce(np.ones(4))


def train_with_torch() -> None:
    import torch

    from stream_server.server.torch_server import TorchServer
    from stream_server.server.training.torch_step import TorchStep

    class Net(TorchServer):
        def prepare_training_attributes(self) -> Any:
            model = torch.nn.Linear(2, 1)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 1 and RANKS.rank == 1:
                raise ValueError("no")
            return self.model(batch).mean()

    server = Net(settings())
    stream = ScriptedStream([batch_of(torch.ones(3, 2, dtype=torch.float64), 3)] * 3)
    with TorchStep(server, RANKS, server.config) as step:
        for index, turn in enumerate(in_lockstep_with(stream)):
            step.run(turn, turn.batch and turn.batch.data, index)


logging.disable()
try:
    train_with_torch() if WAY == "inside_a_torch_step" else train()
except Exception as error:
    code = leave_together(error, RANKS, OUTPUT_DIR, phase="step")
    if code is None:
        RANKS.abort(3)
    (OUTPUT_DIR / f"left-{RANKS.rank}").write_text(str(code))
