"""Run under MPI: what every rank sees of control rounds and reductions, as JSON lines of rank 0."""

import json
import time

import numpy as np

from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.control_round import in_lockstep
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.user.stream_server import StreamServer
from tests.support.streams import ScriptedStream, batch_of

RANKS = ranks_from_environment()


class Averaging(StreamServer):
    """Averages numbers over the union batch; a rank without a batch takes part by itself."""

    means: list[float]

    def state_dict(self) -> dict[str, list[float]]:
        return {"means": self.means}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.means = state["means"]

    def prepare_training_attributes(self) -> None:
        self.means = []

    def training_step(self, batch: np.ndarray, batch_idx: int) -> float:
        mean = self.all_reduce({"x": batch.mean()})["x"]
        self.means.append(float(mean))
        return float(mean)


def show(name: str, value: object) -> None:
    everyone = RANKS.gather(value)
    if everyone is not None:
        print(json.dumps({name: everyone}))


def train_unevenly() -> None:
    """Rank r has r + 1 batches of r + 1 samples, all equal to r."""
    batches = [batch_of(np.full(RANKS.rank + 1, float(RANKS.rank)), RANKS.rank + 1)] * (RANKS.rank + 1)
    server = Averaging()
    server.union_mean = UnionMean(RANKS)
    sizes = []
    with PlainStep(server, RANKS) as step:
        for index, union_batch in enumerate(
            in_lockstep(ScriptedStream(batches), RANKS, StopRequests(), phases=Phases())
        ):
            sizes.append(union_batch.sizes)
            step.run(union_batch, union_batch.own and union_batch.own.data, index)
        step.finish()
    show("sizes", sizes)
    show("means", server.means)


def stop_together() -> None:
    stops = StopRequests()
    if RANKS.rank == RANKS.size - 1:
        stops.request(StopReason.MAX_S, "")
    union_batches = list(in_lockstep(ScriptedStream([batch_of(None, 1)] * 9), RANKS, stops, phases=Phases()))
    show("stopped", [len(union_batches), stops.agreed])


def wait_for_a_slow_rank() -> None:
    """Rank 0 comes 0.3 s late; the others wait for it without burning their cores."""
    RANKS.barrier()
    if RANKS.rank == 0:
        time.sleep(0.3)
    start = time.thread_time()
    RANKS.sum(np.ones(3, np.int64))
    show("cpu_s", time.thread_time() - start)


train_unevenly()
stop_together()
wait_for_a_slow_rank()
show("words", RANKS.broadcast(f"ünï {RANKS.rank}", root=RANKS.size - 1))
show("place", [RANKS.local_rank, RANKS.local_size, RANKS.node, RANKS.num_nodes])
