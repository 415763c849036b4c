"""A small code that writes by ADIOS2, in blocks as the ranks of a parallel one do: a program of its own.

    python adios_writer.py STREAM ENGINE NUM_STEPS OFFSET [KEY=VALUE …]

`trouble=die` kills it after its fourth step, which `trouble=grow` gives another shape; `pause` is in seconds. Others
are parameters of the engine.
"""

import os
import signal
import sys
import time

import numpy as np

# ADIOS2 imports it if it is there, which takes seconds.
sys.modules["torch"] = None

import adios2  # noqa: E402

SHAPE = (4, 3)
NUM_BLOCKS = 2
TROUBLED = 3


def field(step, offset):
    return np.arange(12.0).reshape(SHAPE) * (step + 1) + offset


def write(stream, engine, num_steps, offset, trouble="", pause=0.0, **parameters):
    io = adios2.Adios().declare_io("out")
    io.set_engine(engine)
    io.set_parameters(parameters)
    with adios2.Stream(io, stream, "w") as writer:
        for step in range(num_steps):
            writer.begin_step()
            u = field(step, offset)
            if trouble == "grow" and step == TROUBLED:
                u = np.concatenate((u, u))
            rows = len(u) // NUM_BLOCKS
            for first in range(0, len(u), rows):
                writer.write("u", u[first : first + rows], u.shape, [first, 0], [rows, u.shape[1]])
            writer.write("coefficient", np.full(2, offset), [2], [0], [2])
            writer.write("time", 0.5 * step)
            writer.end_step()
            time.sleep(pause)
            if trouble == "die" and step == TROUBLED:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    stream, engine, num_steps, offset, *others = sys.argv[1:]
    options = dict(it.split("=") for it in others)
    write(stream, engine, int(num_steps), float(offset), pause=float(options.pop("pause", 0)), **options)
