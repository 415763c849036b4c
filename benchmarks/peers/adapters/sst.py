"""ADIOS2's SST, a stream for each simulation; a list of what has come, from which batches are stacked."""

import random

import adios2
import numpy as np

from benchmarks.peers.work import ready


def open_stream(place, producer, mode):
    io = adios2.Adios().declare_io("samples")
    io.set_engine("SST")
    io.set_parameters({"QueueLimit": "16", "QueueFullPolicy": "Block", "OpenTimeoutSecs": "60"})
    return adios2.Stream(io, str(place / f"{producer}.bp"), mode)


def produce(place, producer, work):
    with open_stream(place, producer, "w") as stream:
        for number in range(work.num_samples):
            stream.begin_step()
            stream.write("field", work.sample(producer, number), [work.num_values], [0], [work.num_values])
            stream.end_step()


def batches(place, work):
    ready(place)
    streams = [iter(open_stream(place, producer, "r")) for producer in range(work.num_producers)]
    samples, num = [], 0
    while num < work.num_batches:
        for stream in list(streams):
            step = next(stream, None)
            if step is None:
                streams.remove(stream)
            else:
                samples.append(step.read("field"))
        while num < work.num_allowed(len(samples)):
            num += 1
            yield np.stack(random.sample(samples, work.batch_size))
