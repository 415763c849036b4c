"""Run under MPI: rank 1 fails, in the way that the second argument names; the first is the output folder."""

import logging
import sys
from pathlib import Path

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.failure import leave_together
from stream_server.server.ranks import ranks_from_environment
from stream_server.server.training.lockstep import in_lockstep
from stream_server.server.training.phases import Phases
from stream_server.server.training.stop import StopRequests
from tests.server.streams import ScriptedStream, batch_of

RANKS = ranks_from_environment()
OUTPUT_DIR, WAY = Path(sys.argv[1]), sys.argv[2]


def train() -> None:
    stream = ScriptedStream([batch_of(None, 1)] * 3)
    for _ in in_lockstep(stream, RANKS, StopRequests(), phases=Phases()):
        if RANKS.rank == 1:
            raise UserCodeError("Net.training_step raised ValueError: no")
        if WAY == "inside_a_step":
            RANKS.all_reduce(np.ones(4))


logging.disable()
try:
    train()
except Exception as error:
    code = leave_together(error, RANKS, OUTPUT_DIR, phase="step")
    (OUTPUT_DIR / f"left-{RANKS.rank}").write_text(str(code))
