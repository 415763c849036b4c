"""How many all-reduces an update of several batches makes, under mpirun on two ranks.

The value is the number of all-reduces per update of 4 accumulated batches, counted by torch's profiler; the reference
is the number of buckets of the gradients, each of which must be reduced once. Now and then a rank has no batch.

    python -m benchmarks.accumulate
"""

import json
import sys
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.ddp import NUM_RANKS, Server, some_batches, under_mpirun
from benchmarks.measure import Result, result, show
from stream_server.server.progress.batches import UnionBatch
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch.reduction import buckets
from stream_server.server.training.torch.step import TorchStep
from tests.support.settings import settings

ACCUMULATE = 4
NUM_UPDATES = 9


def results() -> Iterator[Result]:
    """accumulate.allreduce."""
    counts = json.loads(under_mpirun("benchmarks.accumulate", NUM_RANKS))
    yield result("accumulate.allreduce", "all-reduces", [(found, num_buckets) for found, num_buckets in counts])


def measure() -> None:
    """On each rank; rank 0 prints the all-reduces of each update, and the number of buckets."""
    ranks = ranks_from_environment()
    server = Server(settings(precision="32-true", accumulate=ACCUMULATE))
    batches = some_batches(ranks.rank)
    counts = []
    with TorchStep(server, ranks, server.config) as step:
        num_buckets = len(list(buckets(list(server.model.parameters()))))
        for update in range(NUM_UPDATES):
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                for index in range(ACCUMULATE):
                    # In every third update rank 1 has no batch for the last step, in which all is reduced.
                    is_missing = update % 3 == 2 and index == ACCUMULATE - 1
                    batch = None if is_missing and ranks.rank == 1 else batches[index]
                    sizes = (batches[index].size, 0 if is_missing else batches[index].size)
                    union_batch = UnionBatch(own=batch, sizes=sizes)
                    step.run(union_batch, None if batch is None else batch.data, index)
            num_reduced = sum(event.count for event in profiler.key_averages() if "all_reduce" in event.key.lower())
            counts.append((num_reduced, num_buckets))
    if ranks.rank == 0:
        print(json.dumps(counts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["rank"]:
        measure()
    else:
        show(results())
