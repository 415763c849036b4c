"""Stream Server: the simulation."""

import sys
from pathlib import Path

from benchmarks.peers.work import Work, begin, meet
from stream_server.client_api import connect

with connect() as simulation:
    work, place = Work.from_environment(), Path(sys.argv[1])
    meet(place, simulation.id, work)
    begin(place, simulation.id)
    for number in range(work.num_samples):
        simulation.send(number, field=work.sample(simulation.id, number))
