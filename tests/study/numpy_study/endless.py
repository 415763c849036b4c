"""A simulation without an end: it runs until the study wants nothing more. The argument is the time of a step in s."""

import itertools
import sys
import time

from ripple import NUM_STEPS, signal_at

from stream_server.client_api import connect

STEP_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.002

with connect() as simulation:
    for time_step in itertools.count():
        if not simulation.send(time_step, signal=signal_at(time_step % NUM_STEPS, simulation.parameters)):
            print(f"not wanted any more at time step {time_step}: {simulation.stop_reason}")
            break
        if time_step == 0:
            print("running", flush=True)
        time.sleep(STEP_S)
