"""Run under MPI: rank 1 fails, in the way that the second argument names; the first is the output folder."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.study.failure import leave_together
from stream_server.server.training.control_round import barrier, in_lockstep
from tests.support.settings import settings
from tests.support.streams import ScriptedStream, batch_of

RANKS = ranks_from_environment()
OUTPUT_DIR, WAY = Path(sys.argv[1]), sys.argv[2]


def in_lockstep_with(stream: ScriptedStream) -> Iterator[UnionBatch]:
    return in_lockstep(stream, RANKS, StopRequests(), phases=Phases())


def train() -> None:
    for _ in in_lockstep_with(ScriptedStream([batch_of(None, 1)] * 3)):
        if RANKS.rank == 1:
            raise UserCodeError("Net.training_step raised ValueError: no")
        if WAY == "inside_a_step":
            RANKS.all_reduce(np.ones(4))
        if WAY == "beside_other_code":
            signal.pause()


def train_with_torch(stack: ExitStack) -> None:
    import torch

    from stream_server.server.training.torch.step import TorchStep
    from stream_server.server.user.torch_server import TorchServer

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
    step = stack.enter_context(TorchStep(server, RANKS, server.config))
    for index, union_batch in enumerate(in_lockstep_with(stream)):
        step.run(union_batch, union_batch.own and union_batch.own.data, index)


def set_up_torch(stack: ExitStack) -> None:
    """Of the modules that checkpoints are to leave out there is none on rank 1."""
    import torch

    from stream_server.server.training.torch.step import TorchStep
    from stream_server.server.user.torch_server import TorchServer

    class Net(TorchServer):
        def prepare_training_attributes(self) -> Any:
            model = torch.nn.Linear(2, 1)
            if RANKS.rank == 0:
                self.encoder = torch.nn.Linear(2, 2).requires_grad_(False)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

    config = settings()
    config.checkpoint.exclude = ("encoder.*",)
    server = Net(config)
    stack.enter_context(TorchStep(server, RANKS, server.config))
    barrier(RANKS)


def fail(stack: ExitStack) -> None:
    match WAY:
        case "inside_a_torch_step":
            train_with_torch(stack)
        case "after_the_model_is_made":
            set_up_torch(stack)
        case _:
            train()


logging.disable()
with ExitStack() as stack:
    try:
        fail(stack)
    except Exception as error:
        code = leave_together(error, RANKS, OUTPUT_DIR, phase="step")
        if code is None:
            RANKS.abort(3)
# As the ranks' parts of the closing account.
RANKS.gather("")
(OUTPUT_DIR / f"left-{RANKS.rank}").write_text(str(code))
RANKS.barrier()
if RANKS.is_cut_short:
    RANKS.abort(code)
