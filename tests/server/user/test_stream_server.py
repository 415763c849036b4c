"""A server class, alone and among ranks."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import stream_server
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import Aborted, ThreadRanks, on_ranks
from tests.support.settings import settings
from tests.support.streams import batch_of


class Doubling(StreamServer):
    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        return 2 * data.fields["u"]


def small_batch() -> SimulationBatch:
    return SimulationBatch(
        simulation_ids=np.array([1, 2]),
        time_steps=np.array([0, 5]),
        parameters=np.array([[0.1], [0.2]]),
        fields={"u": np.array([[1.0], [2.0]])},
        present={"u": np.array([True, True])},
    )


def test_a_server_is_plain_to_construct_and_to_call() -> None:
    server = Doubling()
    assert (server.rank, server.num_ranks) == (0, 1)
    assert server.process_batch(small_batch(), None).tolist() == [[2], [4]]
    server.log("x", 1.0)
    assert server.all_reduce(np.array([3.0]), n=4).tolist() == [3.0]
    server.stop_study("seen enough")


def test_the_rows_of_a_batch_are_read_only_samples() -> None:
    first, second = small_batch().samples()
    assert (first.simulation_id, second.time_step) == (1, 5)
    with pytest.raises(ValueError, match="read-only"):
        first.fields["u"] += 1


def test_code_without_the_server_logs_by_the_newest_that_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserCodeError, match=r"stream_server\.log\('x', …\) found no study in this process"):
        stream_server.log("x", 1.0)
    servers = [in_study(Doubling()) for _ in range(2)]
    monkeypatch.setattr("stream_server.server.user.stream_server.RUNNING", servers)
    stream_server.log("x", 1.0, reduce="sum")
    stream_server.log("x", 2.0, reduce="sum")
    stream_server.log("y", 3.0, keep=True, step=None)
    for server in servers:
        server._metrics.write(1, 0.1)
    assert [server._metrics.latest for server in servers] == [{}, {"x": 3.0, "y": 3.0}]


def in_study(server: StreamServer) -> StreamServer:
    server.enter_study(SoloRanks(), ["mass"])
    server.hold_attributes(
        progress=Progress(),
        buffer=cast(Any, None),
        output_dir=Path(),
        _metrics=Metrics(SoloRanks()),
        _stops=StopRequests(),
        phases=Phases(),
    )
    return server


@pytest.mark.parametrize(
    "name",
    ["config", "rank", "num_ranks", "parameter_names", "progress", "buffer", "output_dir", "normalization", "log"],
)
def test_what_a_study_needs_itself_cannot_be_assigned(name: str) -> None:
    server = in_study(Doubling(settings()))
    before = getattr(server, name)
    with pytest.raises(
        UserCodeError, match=rf"^self\.{name} must not be assigned in Doubling, .* give .* another name$"
    ):
        setattr(server, name, [])
    assert getattr(server, name) == before


def test_other_attributes_and_replaced_methods_are_the_users() -> None:
    server: Any = in_study(Doubling(settings()))
    server.loss, server.step, server.predict = 0.0, 1, len
    assert (server.loss, server.step, server.predict([])) == (0.0, 1, 0)


class Pair(NamedTuple):
    x: Any
    y: Any


def test_collate_stacks_through_every_structure() -> None:
    collate = StreamServer().collate
    stacked = collate([Pair({"a": 1.0}, [np.int8(3), "s"]), Pair({"a": 2.0}, [np.int8(4), "t"])])
    assert isinstance(stacked, Pair)
    assert stacked.x["a"].tolist() == [1, 2]
    assert stacked.x["a"].dtype == np.float32
    assert stacked.y[0].dtype == np.int8
    assert stacked.y[1] == ["s", "t"]


def test_collate_keeps_64_bits_when_the_precision_says_so() -> None:
    assert StreamServer(settings(precision="64-true")).collate([1.0]).dtype == np.float64


def test_collate_names_samples_of_different_structure() -> None:
    with pytest.raises(UserCodeError, match=r"returned dicts of \('a',\) and \('b',\)"):
        StreamServer().collate([{"a": 1}, {"b": 1}])


def test_a_plain_server_refuses_what_it_would_ignore() -> None:
    with pytest.raises(ConfigError, match="bf16-true needs a TorchServer"):
        StreamServer(settings(precision="bf16-true"))
    with pytest.raises(ConfigError, match="accumulate"):
        PlainStep(StreamServer(settings(accumulate=2)), SoloRanks())


def union_batch_of(sizes: list[int], rank: int) -> UnionBatch:
    batch = batch_of(None, sizes[rank]) if sizes[rank] else None
    return UnionBatch(own=batch, sizes=tuple(sizes), counts=StepCounts(num_first=sum(sizes)))


class Linear(StreamServer):
    """Least squares by gradient descent in NumPy, the gradient averaged over the union batch."""

    weight: Any

    def prepare_training_attributes(self) -> None:
        self.weight = np.array([1.0, -2.0])

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]

    def training_step(self, batch: Any, batch_idx: int) -> float:
        x, y = batch
        residual = x @ self.weight - y
        mean = self.all_reduce({"gradient": 2 * x.T @ residual / len(y), "loss": np.mean(residual**2)})
        self.weight = self.weight - 0.1 * mean["gradient"]
        return float(mean["loss"])


def union_data(num: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    return generator.normal(size=(num, 2)), generator.normal(size=num)


@pytest.mark.parametrize("sizes", [[3, 3], [3, 1], [0, 4], [4, 0, 1], [2, 0, 0, 5]], ids=str)
def test_any_split_of_a_batch_gives_the_gradient_of_the_whole(sizes: list[int]) -> None:
    x, y = union_data(sum(sizes))
    ends = np.cumsum(sizes)

    def train(ranks: ThreadRanks) -> tuple[Any, float | None]:
        server = Linear(settings())
        server.union_mean = UnionMean(ranks)
        rows = slice(ends[ranks.rank] - sizes[ranks.rank], ends[ranks.rank])
        with PlainStep(server, ranks) as step:
            outcome = step.run(union_batch_of(sizes, ranks.rank), (x[rows], y[rows]), 0)
            step.finish()
        return server.weight, outcome.loss

    alone = Linear(settings())
    with PlainStep(alone, SoloRanks()) as step:
        expected = step.run(union_batch_of([sum(sizes)], 0), (x, y), 0).loss
    for size, (weight, loss) in zip(sizes, on_ranks(len(sizes), train), strict=True):
        np.testing.assert_allclose(weight, alone.weight, rtol=1e-12)
        assert loss == (pytest.approx(expected, rel=1e-12) if size else None)


class Disagreeing(StreamServer):
    def training_step(self, batch: Any, batch_idx: int) -> float:
        self.all_reduce(np.zeros(2 + self.rank))
        return 0.0


def test_all_reduce_calls_that_differ_are_named_in_an_uneven_step() -> None:
    def train(ranks: ThreadRanks) -> str:
        server = Disagreeing()
        server.rank = ranks.rank
        server.union_mean = UnionMean(ranks)
        with pytest.raises(UserCodeError, match=r"rank 0 made an all_reduce of arrays of shapes \[\[2\]\]") as error:
            PlainStep(server, ranks).run(union_batch_of([2, 2, 0], ranks.rank), None, 0)
        return str(error.value)

    assert len(set(on_ranks(3, train))) == 1


def test_steps_of_optimizers_that_differ_are_named_also_where_every_rank_has_a_batch() -> None:
    def train(ranks: ThreadRanks) -> str:
        union_mean = UnionMean(ranks)
        try:
            with union_mean.step([2, 2], {"a step of optimizer 0": int, "a step of optimizer 1": int}):
                union_mean.announce(f"a step of optimizer {ranks.rank}")
        except UserCodeError as error:
            with pytest.raises(Aborted):
                ranks.abort(error.exit_code)
            return str(error)
        except Exception as error:
            return type(error).__name__
        return "went on"

    assert "rank 0 made a step of optimizer 0 where rank 1 made a step of optimizer 1" in on_ranks(2, train)[1]


def test_all_reduce_outside_of_a_step_is_a_plain_mean_unless_weights_are_given() -> None:
    def reduce(ranks: ThreadRanks) -> tuple[float, float]:
        mean = UnionMean(ranks)
        return mean.mean(float(ranks.rank)), mean.mean(float(ranks.rank), weight=1 + 2 * ranks.rank)

    assert on_ranks(2, reduce) == [(0.5, 0.75)] * 2


def test_all_reduce_keeps_structure_and_dtype() -> None:
    values = [np.ones((2, 1), np.float32), (np.float64(2), {"k": np.array([3], np.int32)})]
    single, (double, rest) = StreamServer().all_reduce(values)
    assert (single.dtype, single.shape) == (np.float32, (2, 1))
    assert double == 2
    assert rest["k"].tolist() == [3]


class Silent(StreamServer):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        return None


def test_training_step_must_return_the_loss() -> None:
    with pytest.raises(UserCodeError, match=r"Silent\.training_step must return the mean loss"):
        PlainStep(Silent(), SoloRanks()).run(union_batch_of([1], 0), None, 0)


def test_training_step_may_return_nothing_with_manual_optimisation() -> None:
    server = Silent()
    server.automatic_optimization = False
    assert PlainStep(server, SoloRanks()).run(union_batch_of([1], 0), None, 0) == StepOutcome(loss=None)


def test_stop_study_asks_for_an_early_stop() -> None:
    server = StreamServer()
    server.stop_study("the loss is small")
    assert server._stops.pending is StopReason.EARLY_STOP
    assert server._stops.text == "the loss is small"
