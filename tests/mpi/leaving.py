"""Run under MPI: rank 0 is stopped when nothing is left to do but to leave MPI."""

import os
import signal

from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.study.watchdog import Watchdog

collectives = CollectiveCalls()
watchdog = Watchdog(collectives, rank=0, stall_s=2.0, output_dir=None, is_under_mpirun=True)
with watchdog:
    ranks = ranks_from_environment(collectives)
    watchdog.watch(ranks)
    ranks.barrier()
    if ranks.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
