"""A simulation whose time step takes as long as its first argument says, in seconds; with further ones, more fields."""

import sys
import time
from pathlib import Path

from payload import edges, mesh, particles, volume, wave

from stream_server.client_api import connect

with connect() as simulation:
    # Each attempt in a line: what is this short is written in one piece.
    with Path("../../../given.txt").open("a") as file:
        file.write(f"{simulation.id} {simulation.parameters['phase']!r}\n")
    if "mixed" in sys.argv:
        simulation.send_static(mesh=mesh(simulation.id), edges=edges(simulation.id))
    for time_step in simulation.time_steps:
        time.sleep(float(sys.argv[1]))
        more = {"particles": particles(simulation.id, time_step)} if "mixed" in sys.argv else {}
        if "large" in sys.argv:
            more["volume"] = volume(simulation.id, time_step)
        if not simulation.send(time_step, wave=wave(simulation.id, time_step), **more):
            break
