"""How fast samples get from a simulation into the buffer, against a bare pyzmq loop that receives into a ring.

Both figures are samples per second of CPU time of the thread that receives; the sender is a process of its own.
Ours is the whole way: a real client, the receiver, the slot, checked, enqueued and acknowledged, while the main
thread draws from a FIFO that stays about half full. The reference receives a header and a payload per sample, over TCP
with keys as ours, and copies the payload into the next row. At 4 kB the client puts 8 steps into a message, else one,
as the reference has; `intake.*.40kB.packed` leaves it to the client, which then puts 13 into a message.

`intake.curve` is the price of the keys: samples per second of the wall clock, from the client to the training, over TCP
with CURVE, and without it as the reference. Encryption is the work of ZeroMQ's own threads on both sides, which the
CPU time of the receiver thread does not show.

    python -m benchmarks.intake
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import numpy as np
import zmq

from benchmarks.measure import Result, alternated, show
from benchmarks.reception import DEADLINE_S, Reception, reception
from benchmarks.sender import MAX_QUEUED_BYTES, sender
from stream_server.buffers import Fifo
from stream_server.client_api import data_connection

RING_BYTES = 128 * 1024 * 1024
ROUND_BYTES = 192 * 1024 * 1024
DRAW = 32
# Bytes of a sample, and steps in a message.
SIZES = {
    "4kB": (4_000, 8),
    "40kB": (40_000, 1),
    "40kB.packed": (40_000, data_connection.MESSAGE_BYTES // 40_000),
    "1MB": (1_000_000, 1),
}


class Clock(Enum):
    """The measure of a round: the CPU time of the receiver thread, or all the time that it takes."""

    RECEIVER = "receiver"
    WALL = "wall"


def results() -> Iterator[Result]:
    """intake.{ipc,tcp}.{4kB,40kB,40kB.packed,1MB}, intake.curve.{4kB,40kB.packed,1MB}."""
    for transport in ("ipc", "tcp"):
        for size, (sample_bytes, steps_per_message) in SIZES.items():
            with (
                ours(sample_bytes, steps_per_message, over_tcp=transport == "tcp") as value,
                bare(sample_bytes, over_tcp=transport == "tcp") as reference,
            ):
                yield alternated(f"intake.{transport}.{size}", "samples/s", value, reference)
    for size in ("4kB", "40kB.packed", "1MB"):
        with (
            ours(*SIZES[size], over_tcp=True, clock=Clock.WALL) as value,
            ours(*SIZES[size], over_tcp=True, clock=Clock.WALL, encrypts=False) as reference,
        ):
            yield alternated(f"intake.curve.{size}", "samples/s", value, reference)


@contextmanager
def ours(
    sample_bytes: int, steps_per_message: int, *, over_tcp: bool, clock: Clock = Clock.RECEIVER, encrypts: bool = True
) -> Iterator[Callable[[], float]]:
    """Rounds of the receiver thread."""
    with ours_of(sample_bytes, steps_per_message, over_tcp=over_tcp, clock=clock, encrypts=encrypts) as (_, one_round):
        yield one_round


@contextmanager
def ours_of(
    sample_bytes: int,
    steps_per_message: int,
    *,
    over_tcp: bool,
    clock: Clock = Clock.RECEIVER,
    encrypts: bool = True,
    num_simulations: int = 1,
) -> Iterator[tuple[Reception, Callable[[], float]]]:
    """The same, with the study whose simulation 0 is measured."""
    num_rows = RING_BYTES // sample_bytes
    credit = max(4, MAX_QUEUED_BYTES // sample_bytes)
    policy = Fifo(capacity=2 * num_rows)
    with reception(
        policy, sample_bytes=sample_bytes, credit=credit, num_simulations=num_simulations, encrypts=encrypts
    ) as study:
        file = study.write_connection(over_tcp=over_tcp)
        with sender("client", file, sample_bytes, steps_per_message) as send:
            send(num_rows)
            study.wait_until(lambda: study.buffer.population >= num_rows - steps_per_message)
            # Every page is in use before the first round, as in a buffer that has been full once.
            study.buffer.slots.arrays["field"].fill(1)
            num = _num_samples(sample_bytes)
            now_s = time.perf_counter if clock is Clock.WALL else lambda: study.cpu_s

            def one_round() -> float:
                before_s = now_s()
                send(num)
                _draw(study, num)
                return num / (now_s() - before_s)

            yield study, one_round


@contextmanager
def bare(sample_bytes: int, *, over_tcp: bool) -> Iterator[Callable[[], float]]:
    """Rounds of the reference."""
    ring = np.zeros((RING_BYTES // sample_bytes, sample_bytes // 4), np.float32)
    rows = [memoryview(row).cast("B") for row in ring]
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.rcvhwm = max(2, MAX_QUEUED_BYTES // sample_bytes)
        keys = []
        if over_tcp:
            public, router.curve_secretkey = zmq.curve_keypair()
            router.curve_server = True
            keys = [public.decode()]
        router.bind("tcp://127.0.0.1:*" if over_tcp else "ipc://@*")
        with sender("bare", router.getsockopt_string(zmq.LAST_ENDPOINT), sample_bytes, *keys) as send:
            num, at = _num_samples(sample_bytes), 0

            def one_round() -> float:
                nonlocal at
                send(num)
                receive, receive_into, num_rows = router.recv, router.recv_into, len(rows)
                start_s = time.thread_time()
                for _ in range(num):
                    receive()
                    receive()
                    receive_into(rows[at])
                    at = (at + 1) % num_rows
                return num / (time.thread_time() - start_s)

            yield one_round


def _num_samples(sample_bytes: int) -> int:
    return ROUND_BYTES // sample_bytes // DRAW * DRAW


def _draw(study: Reception, num: int) -> None:
    for _ in range(num // DRAW):
        draw = study.buffer.draw(DRAW, DEADLINE_S)
        if draw is None:
            raise TimeoutError("nothing came for a minute")
        study.buffer.release(draw)


if __name__ == "__main__":
    show(results())
