"""A queue of pickled samples, a list of what has come, random.sample and torch's default_collate."""

import random

import zmq

from benchmarks.peers.work import ready


def produce(place, producer, work):
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{place}/queue")
        for number in range(work.num_samples):
            socket.send_pyobj(work.sample(producer, number))


def batches(place, work):
    from torch.utils.data import default_collate

    samples, num = [], 0
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(f"ipc://{place}/queue")
        ready(place)
        while num < work.num_batches:
            allowed = work.num_allowed(len(samples))
            while len(samples) < work.num_total and (num >= allowed or socket.poll(0)):
                samples.append(socket.recv_pyobj())
                allowed = work.num_allowed(len(samples))
            num += 1
            yield default_collate(random.sample(samples, work.batch_size))
