"""Workers: `python worker.py [TROUBLE]` computes one ripple after another, and has trouble once, in its third one."""

import os
import signal
import sys
import time
from pathlib import Path

from ripple import send_all, signal_at

from stream_server.client_api import connect, simulations


def once():
    """Whether this is the first process of the study that asks."""
    try:
        (Path.cwd().parent.parent / "trouble").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


trouble = sys.argv[1] if len(sys.argv) > 1 else ""
if trouble == "never asks":
    with connect() as simulation:
        send_all(simulation)
elif trouble == "asks twice":
    first, second = simulations(), simulations()
    for simulation in first:
        send_all(simulation)
    for simulation in second:
        send_all(simulation)
elif trouble == "paced":
    for simulation in simulations():
        for step in simulation.time_steps:
            time.sleep(0.02)
            simulation.send(step, signal=signal_at(step, simulation.parameters))
else:
    for position, simulation in enumerate(simulations()):
        print(simulation.id, flush=True)
        if position == 2 and trouble and once():
            for step in range(10):
                simulation.send(step, signal=signal_at(step, simulation.parameters))
            if trouble == "dies":
                time.sleep(0.3)  # What it has sent is on its way.
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "leaves":
                break
            if trouble == "hangs":
                time.sleep(1000)
        send_all(simulation)
