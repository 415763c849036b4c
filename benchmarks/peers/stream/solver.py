"""Stream Server: the simulation."""

import sys
from pathlib import Path

from benchmarks.peers.work import Work, begin
from stream_server.client_api import connect

with connect() as simulation:
    work = Work.from_environment()
    begin(Path(sys.argv[1]), simulation.id)
    for number in range(work.num_samples):
        simulation.send(number, field=work.sample(simulation.id, number))
