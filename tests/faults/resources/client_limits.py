"""Connects with fewer and fewer files that may be open, in a process of its own for each number.

    python -m tests.faults.resources.client_limits CONNECTION FIRST STOP

Prints a line of JSON: how each attempt ended, by how many more files it may open.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from stream_server.client_api import connect
from stream_server.config import StudyConfig  # noqa: F401  loaded before nothing more can be opened
from tests.faults.resources.victim import SHAPE


def attempt(connection: Path, num_more: int) -> str:
    """The outcome of a client that may open so many more files."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as words:
            words.write(_connected(connection, num_more))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        said = words.read()
    _, status = os.waitpid(pid, 0)
    return said if os.WIFEXITED(status) else signal.Signals(os.WTERMSIG(status)).name


def _connected(connection: Path, num_more: int) -> str:
    num_open = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + num_more, hard))
    try:
        with connect(connection, simulation_id=0) as simulation:
            for time_step in simulation.time_steps:
                simulation.send(time_step, u=np.full(SHAPE, float(time_step)))
    except OSError as error:
        return str(error)
    return "finished"


if __name__ == "__main__":
    path, first, stop = sys.argv[1:]
    ends = {}
    for number in range(int(first), int(stop)):
        ends[number] = attempt(Path(path), number)
        if ends[number] == "finished":
            break
    print(json.dumps(ends))
