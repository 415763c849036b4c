"""The simulation of tests/faults/chaos/study, which finds every address of its server at another place of the loopback.

    python wave.py STEP_S INSTEAD_OF PLACE

There, at PLACE, proxies stand at the same ports.
"""

import sys
import time
from collections.abc import Sequence

sys.path.append(sys.argv[4])

from payload import wave

from stream_server.client_api import connect, transport

STEP_S, SERVER, PLACE = float(sys.argv[1]), sys.argv[2], sys.argv[3]
usable = transport.usable


def detour(addresses: Sequence[str], ways: object) -> tuple[str, str]:
    """The address that a client on another node takes, but at another place."""
    return usable([address.replace(SERVER, PLACE) for address in addresses], None)


transport.usable = detour

with connect() as simulation:
    for time_step in simulation.time_steps:
        time.sleep(STEP_S)
        if not simulation.send(time_step, wave=wave(simulation.id, time_step)):
            break
