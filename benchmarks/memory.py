"""The resident memory of a server process when its buffer is full, against the bytes of the buffer.

A process receives from eight simulations into a Reservoir and trains on it, until the buffer is full and all
simulations wait: then every window is full as well. From what is resident then, we take off what was resident just
before the simulations connected. The bytes of the buffer are 1 GiB of rows, eight ninths of them for the capacity and
the rest for the windows. `memory_bytes.buffer` of `report.json` counts the spare slots too, which are there as in a
study, but take no memory before a checkpoint is written.

With windows, a process takes in the steps of simulations without a socket, until three times as many windows were made
as the buffer holds. The reference are the steps that it holds then.

    python -m benchmarks.memory
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, result, show
from benchmarks.reception import DEADLINE_S, HELD_SAMPLES, reception
from benchmarks.sender import sender
from stream_server import StreamServer
from stream_server.buffers import Reservoir, Slots, WindowBuffer, WindowShape
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
WINDOW = WindowShape(length=5)
NUM_WINDOWS = 6_000
NUM_STEPS = 200


def results() -> Iterator[Result]:
    """memory and memory.windows."""
    for name, what in (("memory", "server"), ("memory.windows", "windows")):
        yield result(name, "bytes", [_run(what) for _ in range(NUM_RUNS)])


class Server(StreamServer):
    """Takes the fields as they are."""

    def process_batch(self, batch, config):
        return batch.fields["field"]


def fill() -> None:
    """In a process of its own: print by how much it has grown when the buffer is full, and the bytes of that."""
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
        print(_resident_bytes() - base, BUFFER_BYTES, flush=True)


def fill_windows() -> None:
    """In a process of its own: print by how much it has grown, and the bytes of the steps that it holds."""
    most_kept = 2 * WINDOW.span * NUM_SIMULATIONS
    slots = Slots({"field": (SAMPLE_BYTES // 4,)}, NUM_WINDOWS * WINDOW.length + 2 * most_kept)
    slots.allocate({"field": np.float32})
    policy = Reservoir(capacity=NUM_WINDOWS, watermark=BATCH_SIZE, seed=1)
    buffer = WindowBuffer(policy, slots, shape=WINDOW, most_kept=most_kept)
    field, base = np.ones(SAMPLE_BYTES // 4, np.float32), _resident_bytes()
    for first in range(0, 3 * NUM_WINDOWS // NUM_STEPS, NUM_SIMULATIONS):
        simulations = range(first, first + NUM_SIMULATIONS)
        for step in range(NUM_STEPS):
            for simulation in simulations:
                [slot] = buffer.claim(1)
                slots.simulation_ids[slot], slots.time_steps[slot] = simulation, step
                slots.set_value("field", slot, field)
                buffer.enqueue([slot])
                buffer.admit()
            # What was drawn makes room.
            if (draw := buffer.draw(2 * BATCH_SIZE, 0.0)) is not None:
                buffer.release(draw)
        buffer.end(simulations)
    assert policy.population == NUM_WINDOWS
    print(_resident_bytes() - base, (slots.num_slots - slots.num_free) * SAMPLE_BYTES, flush=True)


def _run(what: str) -> tuple[float, float]:
    argv = [sys.executable, "-m", "benchmarks.memory", what]
    said = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    growth, reference = map(float, said.split())
    return growth, reference


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


if __name__ == "__main__":
    if sys.argv[1:] == ["server"]:
        fill()
    elif sys.argv[1:] == ["windows"]:
        fill_windows()
    else:
        show(results())
