"""Arrays of several simulations over ZeroMQ, without pickling, for buffers that have no receiver of their own."""

import numpy as np
import zmq

from benchmarks.peers.work import ready


def send(place, producer, work):
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{place}/queue")
        for number in range(work.num_samples):
            socket.send(work.sample(producer, number), copy=False)


def fill_and_draw(place, work, add, draw):
    """Add what has come, in chunks, and draw as many batches as it allows."""
    received, num = 0, 0
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(f"ipc://{place}/queue")
        ready(place)
        while num < work.num_batches:
            rows = []
            while received + len(rows) < work.num_total:
                enough = num < work.num_allowed(received + len(rows))
                if enough and not (len(rows) < 64 and socket.poll(0)):
                    break
                rows.append(np.frombuffer(socket.recv(), np.float32))
            if rows:
                add(np.stack(rows))
                received += len(rows)
            num += 1
            yield draw()
