"""The same simulation with its parameters read from a file that the launcher has rendered from a template."""

import sys
from pathlib import Path

from ripple import send_all

from stream_server.client_api import connect

with connect() as simulation:
    lines = Path(sys.argv[1]).read_text().splitlines()
    told = {name: float(value) for name, value in (line.split("=") for line in lines)}
    assert told == {**simulation.parameters, "id": simulation.id}
    send_all(simulation)
