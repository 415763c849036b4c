"""The process in which a user's class suggests parameters: it answers one request after another, while rank 0 lives.

python -P -m stream_server.server.steering.generator_worker DESCRIPTOR
"""

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from stream_server.config.parameters import Bounds
from stream_server.errors import ConfigError, StreamServerError
from stream_server.machine import program
from stream_server.samplers.generator import PointGenerator

LEAVE_S = 5.0


class GeneratorWorker:
    """The generators of training and validation simulations: objects of the same class with seeds of their own."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._generators: dict[str, PointGenerator] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked for; what the class raises becomes part of the answer."""
        try:
            match request.pop("do"):
                case "begin":
                    self._settings = request
                    generator = self._generator("training")
                    return {"learns": generator.learns, "stops": generator.stops}
                case "suggest":
                    generator = self._generator(request["stream"])
                    if request["may_end"] and generator.has_enough():
                        return {"enough": True, "points": [], "problem": ""}
                    suggested = generator.suggest(request["num"])
                    points = [[list(point.values), point.score] for point in suggested.points]
                    return {"points": points, "problem": suggested.problem}
                case "ingest":
                    return {"stop": self._generator("training").ingest(request["results"])}
                case other:
                    raise AssertionError(other)
        except StreamServerError as error:
            traceback.print_exc()
            return {"error": str(error), "is_config": isinstance(error, ConfigError)}

    def close(self) -> None:
        """Let the class put its things in order."""
        for generator in self._generators.values():
            generator.finalize()

    def _generator(self, stream: str) -> PointGenerator:
        if stream not in self._generators:
            settings = self._settings
            bounds = {name: Bounds.model_validate(limits) for name, limits in settings["bounds"].items()}
            seed, folder = settings["seeds"][stream], Path(settings["folder"])
            self._generators[stream] = PointGenerator(settings["class"], settings["args"], bounds, seed, folder=folder)
        return self._generators[stream]


def main() -> None:
    """Answer what comes over the connection, until its other end is closed."""
    descriptor = int(sys.argv[1])
    _end_with_rank_0(descriptor)
    connection = Connection(descriptor)
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    # A daemon, since it waits for rank 0 as long as that lives: an error of the main thread must end the process.
    Thread(target=_read, args=(connection, requests), name="requests", daemon=True).start()
    worker = GeneratorWorker()
    while (frame := requests.get()) is not None and (request := json.loads(frame)) is not None:
        answer = json.dumps(worker.answer(request)).encode()
        with suppress(OSError):
            connection.send_bytes(answer)
    worker.close()
    sys.stdout.flush()
    sys.stderr.flush()
    _end_session()


def _read(connection: Connection, requests: "SimpleQueue[bytes | None]") -> None:
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        pass
    finally:
        requests.put(None)


def _end_with_rank_0(descriptor: int) -> None:
    """Start a process that ends the session once rank 0 is gone, also while the class holds the interpreter lock.

    It waits for the end of the standard input, into which rank 0 writes nothing.
    """
    if os.fork():
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        return
    # Rank 0 hears that the class's process has ended when nobody has the connection any more.
    os.close(descriptor)
    os.read(0, 1)
    time.sleep(LEAVE_S)
    _end_session()


def _end_session() -> None:
    """End this process group, with all threads and processes that the class has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    program.begin()
    main()
