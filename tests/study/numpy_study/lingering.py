"""The same simulation, which takes `python lingering.py SECONDS` so long to end after it has sent all."""

import sys
import time

from ripple import send_all

from stream_server.client_api import connect

with connect() as simulation:
    send_all(simulation)
time.sleep(float(sys.argv[1]))
