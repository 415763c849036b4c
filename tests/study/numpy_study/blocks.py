"""The same simulation as four processes, each with its part of two fields, and one with no part at all.

`python blocks.py [ID]` starts them; of simulation ID, if one is named, the first attempt loses its rank 1 half-way.
"""

import os
import random
import signal as signals
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import wait

import numpy as np
from ripple import NUM_STEPS, ripple

from stream_server.client_api import connect

SHAPE = (5, 7, 3)
# Where each rank's part of `pressure` and of `signal` lies; that of the last one is empty.
PRESSURE = (np.s_[0:3, 0:4, :], np.s_[0:3, 4:7, :], np.s_[3:5, 0:7, :], np.s_[5:5, 0:7, :])
SIGNAL = (np.s_[0:5], np.s_[5:6], np.s_[6:8], np.s_[8:8])
NUM_RANKS = len(PRESSURE)
JITTER_S = 0.0005
FORK = get_context("fork")


def pressure(signal, time_step):
    """A field whose every value tells where it belongs."""
    return np.arange(np.prod(SHAPE)).reshape(SHAPE) + signal[0] + 1000.0 * time_step


def run_rank(rank, victim):
    jitter = random.Random(os.getpid())
    with connect(rank=rank, num_ranks=NUM_RANKS) as simulation:
        simulation.declare_field("pressure", shape=SHAPE, offset=[part.start or 0 for part in PRESSURE[rank]])
        simulation.declare_field("signal", shape=[8], offset=[SIGNAL[rank].start])
        for time_step, signal in enumerate(ripple(simulation.parameters)):
            if (simulation.id, simulation.attempt, rank, time_step) == (victim, 0, 1, NUM_STEPS // 2):
                os.kill(os.getpid(), signals.SIGKILL)
            time.sleep(jitter.expovariate(1 / JITTER_S))
            whole = pressure(signal, time_step)
            if not simulation.send(time_step, pressure=whole[PRESSURE[rank]], signal=signal[SIGNAL[rank]]):
                break


def run_all(victim):
    """Start the ranks and wait for them; as under mpirun, the first that fails takes the others along."""
    ranks = [FORK.Process(target=run_rank, args=(rank, victim)) for rank in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    running = set(ranks)
    while running:
        wait([rank.sentinel for rank in running])
        running = {rank for rank in running if rank.exitcode is None}
        if any(rank.exitcode for rank in ranks):
            for rank in running:
                rank.kill()
            sys.exit(1)


if __name__ == "__main__":
    run_all(victim=int(sys.argv[1]) if len(sys.argv) > 1 else -1)
