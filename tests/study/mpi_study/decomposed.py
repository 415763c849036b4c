"""The ripple on the ranks of an MPI job, each of which sends its block of a plane, of a volume and of the signal.

`python -m mpi4py decomposed.py [TROUBLE ID]`; a trouble is one of simulation ID, or of all if that is -1. The blocks
are those of grids of 2 or 4 ranks, and of different sizes.
"""

import os
import signal as signals
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from stream_server.client_api import connect

NUM_STEPS = 20
STEP = 10
PLANE, VOLUME = (5, 7), (3, 4, 5)
# How many ranks each axis is cut for: never the first axis alone.
GRIDS = {2: ((1, 2), (1, 1, 2)), 4: ((2, 2), (1, 2, 2))}


def plane(offset, time_step):
    """A field whose every value tells where and when it belongs, and to which simulation."""
    return np.arange(np.prod(PLANE)).reshape(PLANE) + offset + 1000.0 * time_step


def volume(offset, time_step):
    return np.arange(np.prod(VOLUME)).reshape(VOLUME) - offset - 1000.0 * time_step


def signal_at(time_step, parameters):
    return parameters["offset"] + parameters["slope"] * np.arange(8) / 8 + time_step / NUM_STEPS


def part_of(length, num, position):
    """The range of one of `num` parts; the first ones are the longer ones."""
    cuts = np.cumsum([0] + [length // num + (i < length % num) for i in range(num)])
    return slice(int(cuts[position]), int(cuts[position + 1]))


def block_of(shape, grid, rank):
    return tuple(part_of(*axis) for axis in zip(shape, grid, map(int, np.unravel_index(rank, grid)), strict=True))


def kill(simulation, comm, time_step):
    if (simulation.attempt, comm.rank, time_step) == (0, 1, STEP):
        os.kill(os.getpid(), signals.SIGKILL)


def crash(simulation, comm, time_step):
    if (simulation.attempt, comm.rank, time_step) == (0, 1, STEP):
        raise RuntimeError("the solver diverged")


def wait(simulation, comm, time_step):
    # The others have sent this step, and wait for this rank.
    if time_step == STEP and comm.rank == 0:
        print("waiting", flush=True)
        await_go()


def await_go():
    while not Path(sys.argv[3]).exists():
        time.sleep(0.01)


def run(comm, trouble, victim):
    with connect(rank=comm.rank, num_ranks=comm.size) as simulation:
        plane_grid, volume_grid = GRIDS[comm.size]
        blocks = {
            "plane": block_of(PLANE, plane_grid, comm.rank),
            "volume": block_of(VOLUME, volume_grid, comm.rank),
            "signal": block_of((8,), (comm.size,), comm.rank),
        }
        for (name, block), shape in zip(blocks.items(), (PLANE, VOLUME, (8,)), strict=True):
            simulation.declare_field(name, shape=shape, offset=[axis.start for axis in block])
        for time_step in range(NUM_STEPS):
            if victim in (simulation.id, -1):
                trouble(simulation, comm, time_step)
            elif simulation.id - 1 == victim and comm.size < MPI.COMM_WORLD.size:
                # The one that shares the job with the victim is not done when that fails.
                time.sleep(60)
            signal = signal_at(time_step, simulation.parameters)
            fields = {"plane": plane(signal[0], time_step), "volume": volume(signal[0], time_step), "signal": signal}
            sent = simulation.send(time_step, **{name: fields[name][block] for name, block in blocks.items()})
            if trouble is wait and time_step == STEP:
                # In MPI they would wait with a whole core each.
                await_go()
            # The ranks learn at different steps that a study has ended.
            if not comm.allreduce(sent, MPI.LAND):
                break


if __name__ == "__main__":
    # Several simulations may share the job.
    world = MPI.COMM_WORLD
    own = world.Split(world.Get_attr(MPI.APPNUM) or 0, world.rank)
    run(own, *((globals()[sys.argv[1]], int(sys.argv[2])) if len(sys.argv) > 1 else (None, None)))
