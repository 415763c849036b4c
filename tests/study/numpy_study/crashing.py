"""The same simulation, but `python crashing.py FILE ID …` crashes half-way as one of these, until there is FILE."""

import sys
from pathlib import Path

from ripple import NUM_STEPS, ripple

from stream_server.client_api import connect

repaired, *victims = sys.argv[1:]
with connect() as simulation:
    for time_step, signal in enumerate(ripple(simulation.parameters)):
        if time_step == NUM_STEPS // 2 and str(simulation.id) in victims and not Path(repaired).exists():
            raise RuntimeError("the solver diverged")
        if not simulation.send(time_step, signal=signal):
            break
