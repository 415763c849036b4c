"""The price of a sample for the receiver as more and more clients share it.

CPU time of the thread that receives, per sample of 4 kB, with 1, 16, 64 and 256 clients; the reference is one client.
One process plays all clients, over ipc: each says what a real one says, with as many steps in a message as its credit
lets it gather. The credit is that of a study of this buffer and so many simulations, while the main thread draws from a
FIFO.

    python -m benchmarks.clients
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from benchmarks.measure import Result, alternated, show
from benchmarks.reception import DEADLINE_S, STUDY, reception
from stream_server.buffers import Fifo
from stream_server.client_api.data_connection import MESSAGE_BYTES, FlowControl
from stream_server.messages import wire
from stream_server.messages.client import Ack, Block, Data, Open, Opened
from stream_server.server.intake.credit import credit_per_simulation

SAMPLE_BYTES = 4_000
CAPACITY = 20_000
WINDOW_BYTES = 64 * 2**20
NUM_CLIENTS = (16, 64, 256)
NUM_SAMPLES = 20_480
DRAW = 32
OPEN_AGAIN_S = 0.2


def results() -> Iterator[Result]:
    """intake.clients.{16,64,256}."""
    with clients(1) as one:
        for num in NUM_CLIENTS:
            with clients(num) as many:
                yield alternated(f"intake.clients.{num}", "samples/s", many, one)


@contextmanager
def clients(num: int) -> Iterator[Callable[[], float]]:
    """Rounds with so many clients: samples per second of CPU time of the receiver thread."""
    credit = credit_per_simulation(
        retained_bytes=WINDOW_BYTES, sample_bytes=SAMPLE_BYTES, capacity=CAPACITY, max_simulations=num
    )
    with reception(Fifo(capacity=CAPACITY), sample_bytes=SAMPLE_BYTES, credit=credit, num_simulations=num) as study:
        address = study.receiver.sockets.settings.ipc_folder / "d0"
        argv = [sys.executable, "-m", "benchmarks.clients", json.dumps([f"ipc://{address}", num])]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdin is not None
                say = process.stdin

                def one_round() -> float:
                    before_s = study.cpu_s
                    print(NUM_SAMPLES, file=say, flush=True)
                    for _ in range(NUM_SAMPLES // DRAW):
                        draw = study.buffer.draw(DRAW, DEADLINE_S)
                        if draw is None:
                            raise TimeoutError("nothing came for a minute")
                        study.buffer.release(draw)
                    return NUM_SAMPLES / (study.cpu_s - before_s)

                yield one_round
            finally:
                process.kill()


class Client:
    """One client: a connection to the receiver, and what it may send."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, simulation: int) -> None:
        self.simulation = simulation
        self.flow: FlowControl | None = None
        self.steps_per_message = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)
        self._num_steps = 0

    def ask_to_open(self) -> None:
        size = SAMPLE_BYTES // 4
        block = Block(field="field", dtype="<f4", shape=(size,), offset=(0,), count=(size,))
        opening = Open(
            study=STUDY, simulation=self.simulation, attempt=0, incarnation=0, rank=0, num_ranks=1, blocks=(block,)
        )
        self.socket.send_multipart(wire.encode(opening))

    def hear(self) -> None:
        """Read all answers."""
        while self.socket.poll(0):
            answer = wire.decode(self.socket.recv())
            if isinstance(answer, Opened) and self.flow is None:
                self.flow = FlowControl(answer.credit)
                self.steps_per_message = max(1, min(MESSAGE_BYTES // SAMPLE_BYTES, answer.credit // 2))
            elif isinstance(answer, Ack) and self.flow is not None:
                self.flow.received(answer.received)

    @property
    def has_room(self) -> bool:
        """There is credit for a message."""
        return self.flow is not None and self.flow.room >= self.steps_per_message

    def send(self, samples: memoryview, most: int) -> int:
        """Send a message, for which there must be room; returns of how many steps, at most `most`."""
        assert self.flow is not None
        num = min(most, self.steps_per_message)
        data = Data(
            simulation=self.simulation,
            attempt=0,
            incarnation=0,
            sequence=self.flow.sequence,
            index=self._num_steps,
            num_steps=num,
            present=1,
        )
        self.socket.send_multipart([*wire.encode(data), samples[: num * SAMPLE_BYTES]], copy=False)
        self.flow.sent(num_steps=num, num_messages=1)
        self._num_steps += num
        return num


def play(address: str, num: int) -> None:
    """Be these clients: each line of the input says how many samples to send, one client after the other."""
    samples = memoryview(bytes(MESSAGE_BYTES))
    with zmq.Context() as context:
        context.max_sockets = num + 1
        poller = zmq.Poller()
        them = [Client(context, address, simulation) for simulation in range(num)]
        for it in them:
            poller.register(it.socket, zmq.POLLIN)
        while waiting := [it for it in them if it.flow is None]:
            for it in waiting:
                it.ask_to_open()
            time.sleep(OPEN_AGAIN_S)
            for it in waiting:
                it.hear()
        of_socket = {it.socket: it for it in them}
        at = 0
        for line in sys.stdin:
            left = int(line)
            while left:
                for _ in range(num):
                    it, at = them[at], (at + 1) % num
                    if left and it.has_room:
                        left -= it.send(samples, left)
                has_room = any(it.has_room for it in them)
                for socket, _ in poller.poll(0 if has_room else None):
                    of_socket[socket].hear()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(*json.loads(sys.argv[1]))
    else:
        show(results())
