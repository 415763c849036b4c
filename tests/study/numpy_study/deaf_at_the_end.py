"""The same simulation, whose first attempt hears nothing of the server any more once it has sent all.

`python deaf_at_the_end.py ID FILE` is deaf as simulation ID, and until there is such a file.
"""

import sys
from pathlib import Path

from ripple import send_all

from stream_server.client_api import connect
from stream_server.client_api.data_connection import DataConnection

TAKE_ANSWERS = DataConnection.take_answers


def drop_answers(connection):
    """Drop the answers that arrive, for good, until the file exists."""
    if Path(sys.argv[2]).exists():
        return TAKE_ANSWERS(connection)
    while connection.dealer.receive() is not None:
        pass
    return False


with connect() as simulation:
    send_all(simulation)
    if simulation.id == int(sys.argv[1]):
        DataConnection.take_answers = drop_answers
print("my own result is complete")
