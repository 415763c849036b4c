"""Tells the benchmark when a server has trained its first batch, and when it has saved."""

import os
import time
from pathlib import Path
from typing import Any

from stream_server import Callback


class Announcer(Callback):
    """Writes `trained PID SECONDS` and `saved PID SECONDS` into a named pipe; rank 0 only."""

    def __init__(self) -> None:
        self.has_trained = False

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: Any) -> None:
        if not self.has_trained:
            self.has_trained = True
            announce(server, "trained")

    def on_checkpoint(self, server: Any, path: Path) -> None:
        announce(server, "saved")


def announce(server: Any, what: str) -> None:
    """One line, written at once."""
    if server.rank == 0:
        with open(server.config.user["pipe"], "w") as pipe:
            pipe.write(f"{what} {os.getpid()} {time.monotonic()}\n")
