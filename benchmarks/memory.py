"""The resident memory of a server process when its buffer is full, against the bytes of the buffer.

A process receives from eight simulations into a Reservoir and trains on it, until the buffer is full and all
simulations wait: then every window is full as well. From what is resident then, we take off what was resident just
before the simulations connected. The bytes of the buffer are 1 GiB of rows, eight ninths of them for the capacity and
the rest for the windows. `memory_bytes.buffer` of `report.json` counts the spare slots too, which are there as in a
study, but take no memory before a checkpoint is written.

    python -m benchmarks.memory
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, alternated, show
from benchmarks.reception import DEADLINE_S, HELD_SAMPLES, reception
from benchmarks.sender import sender
from stream_server import StreamServer
from stream_server.buffers import Reservoir
from stream_server.client_api.data_connection import MESSAGE_BYTES
from stream_server.server.progress.phases import Phases
from stream_server.server.training.stream import BatchStream

SAMPLE_BYTES = 40_000
NUM_SIMULATIONS = 8
WINDOW_BYTES = 64 * 2**20
STEPS_PER_MESSAGE = MESSAGE_BYTES // SAMPLE_BYTES
BATCH_SIZE = 32
# As make_plan has it: all windows together take at most an eighth of the capacity.
NUM_SLOTS = 1024**3 // SAMPLE_BYTES
CAPACITY = (NUM_SLOTS - HELD_SAMPLES) * 8 // 9
CREDIT = min(WINDOW_BYTES // SAMPLE_BYTES, CAPACITY // (8 * NUM_SIMULATIONS))
BUFFER_BYTES = (CAPACITY + CREDIT * NUM_SIMULATIONS + HELD_SAMPLES) * SAMPLE_BYTES
NUM_BATCHES = 100
NUM_RUNS = 9


def results() -> Iterator[Result]:
    """memory."""
    runs = iter(map(_run, range(NUM_RUNS + 1)))
    yield alternated("memory", "bytes", lambda: next(runs), lambda: float(BUFFER_BYTES), NUM_RUNS)


class Server(StreamServer):
    """Takes the fields as they are."""

    def process_batch(self, batch, config):
        return batch.fields["field"]


def fill() -> None:
    """In a process of its own: print by how much it has grown when the buffer is full."""
    policy = Reservoir(capacity=CAPACITY, watermark=BATCH_SIZE, seed=1)
    with ExitStack() as stack:
        study = stack.enter_context(
            reception(
                policy,
                sample_bytes=SAMPLE_BYTES,
                credit=CREDIT,
                num_simulations=NUM_SIMULATIONS,
                spare=CREDIT * NUM_SIMULATIONS,
            )
        )
        buffer = study.buffer
        server = Server()
        base = _resident_bytes()
        for simulation in range(NUM_SIMULATIONS):
            file = study.write_connection(simulation)
            stack.enter_context(sender("client", file, SAMPLE_BYTES))(2 * CAPACITY)
        stream = None
        for _ in range(NUM_BATCHES):
            draw = buffer.draw(BATCH_SIZE, DEADLINE_S)
            assert draw is not None
            buffer.release(draw)
            stream = stream or BatchStream(
                buffer,
                server,
                parameters_of=lambda simulation: np.zeros(1),
                batch_size=BATCH_SIZE,
                phases=Phases(),
            )
            assert stream.draw(DEADLINE_S) is not None
        study.wait_until(lambda: buffer.num_unseen == CAPACITY)
        # A client keeps what would not fill a message, or none of its window.
        study.wait_until(lambda: buffer.num_waiting >= NUM_SIMULATIONS * (CREDIT - STEPS_PER_MESSAGE))
        print(_resident_bytes() - base, flush=True)


def _run(number: int) -> float:
    argv = [sys.executable, "-m", "benchmarks.memory", "server"]
    return float(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


if __name__ == "__main__":
    if sys.argv[1:] == ["server"]:
        fill()
    else:
        show(results())
