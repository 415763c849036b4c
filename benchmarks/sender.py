"""A process that sends samples: each line of its input says how many.

A client answers with the CPU time that its own thread took for them.

python -m benchmarks.sender client CONNECTION_FILE SAMPLE_BYTES [STEPS_PER_MESSAGE]
python -m benchmarks.sender bare ADDRESS SAMPLE_BYTES [SERVER_KEY]
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import zmq

from stream_server.client_api import connect, data_connection
from stream_server.messages import wire

MAX_QUEUED_BYTES = 16 * 1024 * 1024


class Sender:
    """Such a process: call it to make it send, and then, once for each call, `cpu_s`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, num_samples: int) -> None:
        assert self._process.stdin is not None
        print(num_samples, file=self._process.stdin, flush=True)

    def cpu_s(self) -> float:
        """The CPU time of the client for the earliest call not asked for yet; waits until all its samples are sent."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())


@contextmanager
def sender(*arguments: object) -> Iterator[Sender]:
    """Start such a process."""
    argv = [sys.executable, "-m", "benchmarks.sender", *map(str, arguments)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Sender(process)
        finally:
            process.kill()


def send_as_client(connection_file: str, sample_bytes: int, steps_per_message: int = 0) -> None:
    """The real client, with just so many steps in a message, or as many as it likes."""
    if steps_per_message:
        data_connection.MESSAGE_BYTES = steps_per_message * sample_bytes
    sample = np.ones(sample_bytes // 4, np.float32)
    simulation = connect(connection_file)
    time_step = 0
    for line in sys.stdin:
        before_s = time.thread_time()
        for _ in range(int(line)):
            simulation.send(time_step, field=sample)
            time_step += 1
        print(time.thread_time() - before_s, flush=True)


def send_bare(address: str, sample_bytes: int, server_key: str = "") -> None:
    """Nothing but ZeroMQ: a header of the same size as ours and the payload, one sample per message."""
    header, sample = bytes(wire.DATA.size), np.ones(sample_bytes // 4, np.float32)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.sndhwm = max(2, MAX_QUEUED_BYTES // sample_bytes)
        if server_key:
            dealer.curve_serverkey = server_key.encode()
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.connect(address)
        for line in sys.stdin:
            for _ in range(int(line)):
                dealer.send(header, zmq.SNDMORE)
                dealer.send(sample.data)


if __name__ == "__main__":
    kind, target, size, *more = sys.argv[1:]
    if kind == "client":
        send_as_client(target, int(size), *map(int, more))
    else:
        send_bare(target, int(size), *more)
