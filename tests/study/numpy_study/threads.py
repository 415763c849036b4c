"""A simulation that prints how many threads its libraries may start."""

import os

from ripple import send_all

from stream_server.client_api import connect

with connect() as simulation:
    for name in sorted(os.environ):
        if name.endswith("_THREADS"):
            print(f"{name}={os.environ[name]}", flush=True)
    send_all(simulation)
