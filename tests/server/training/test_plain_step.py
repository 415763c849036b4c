"""The settings that a plain StreamServer's step refuses."""

from typing import Any

import numpy as np
import pytest

from stream_server.errors import ConfigError
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.user.framework import framework_of
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import on_ranks
from tests.support.settings import settings
from tests.support.streams import batch_of


@pytest.mark.parametrize(
    "ignored",
    [
        {"accumulate": 2},
        {"clip_norm": 1.0},
        {"clip_value": 1.0},
        {"compile": True},
        {"matmul_precision": "high"},
        {"deterministic": True},
        {"device": "cpu"},
    ],
)
def test_settings_for_torch_are_refused(ignored: dict[str, Any]) -> None:
    server = StreamServer(settings(**ignored))
    with pytest.raises(
        ConfigError, match=rf"^training\.{next(iter(ignored))} must be left out: that is for a TorchServer"
    ):
        framework_of(server).make_step(server, SoloRanks())


def test_all_that_is_refused_is_told_at_once() -> None:
    server = StreamServer(settings(accumulate=2, compile=True))
    with pytest.raises(ConfigError, match=r"^training\.accumulate and training\.compile must be left out"):
        framework_of(server).make_step(server, SoloRanks())


def test_a_filter_of_what_is_saved_is_refused_as_it_would_be_ignored() -> None:
    class Filtering(StreamServer):
        def save_filter(self, name: str) -> bool:
            return False

    server = Filtering(settings())
    with pytest.raises(ConfigError, match=r"^Filtering\.save_filter must be left out: that is for a TorchServer"):
        framework_of(server).make_step(server, SoloRanks())


class Forgetful(StreamServer):
    def training_step(self, batch: Any, batch_idx: int) -> float:
        return 0.5


class Remembering(Forgetful):
    def state_dict(self) -> dict[str, Any]:
        return {"weight": 1.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Uniting(Remembering):
    def training_step(self, batch: Any, batch_idx: int) -> float:
        return float(self.all_reduce(0.5))


class UnitingAfterwards(Remembering):
    def on_step_end(self) -> None:
        self.all_reduce(0.5)


class OnlyLossesUnited(Uniting):
    """Updates its weights from the batch of its rank, and unites only what it logs."""

    weight = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> float:
        self.weight += self.rank
        return super().training_step(batch, batch_idx)

    def state_dict(self) -> dict[str, Any]:
        return {"layers": [{"weight": np.full(3, self.weight)}], "batches": self.rank, "random": np.array([self.rank])}


class MeantToDiffer(OnlyLossesUnited):
    def replicated_state(self) -> dict[str, Any]:
        return {}


class Compared(Remembering):
    def replicated_state(self) -> dict[str, Any]:
        return {}


LOST = "{} has no state_dict and load_state_dict: after a restart"
APART = "{} called no all_reduce on 2 ranks: each rank trained a model of its own"
DIFFERENT = "layers.0.weight in the state_dict of {} is not the same on all 2 ranks, of which that of rank 0 is saved"


@pytest.mark.parametrize(
    ("kind", "num_ranks", "said"),
    [
        (Forgetful, 1, [LOST]),
        (Forgetful, 2, [LOST, APART]),
        (Remembering, 1, []),
        (Remembering, 2, [APART]),
        (Uniting, 2, []),
        (UnitingAfterwards, 2, []),
        (Compared, 2, []),
        (OnlyLossesUnited, 1, []),
        (OnlyLossesUnited, 2, [DIFFERENT]),
        (MeantToDiffer, 2, []),
        (StreamServer, 2, []),
    ],
)
def test_a_model_that_a_restart_loses_or_that_each_rank_has_for_itself_is_told(
    kind: type[StreamServer], num_ranks: int, said: list[str]
) -> None:
    def trained(ranks: Ranks) -> list[str]:
        server = kind(settings())
        server.union_mean = UnionMean(ranks)
        server.rank = ranks.rank
        with PlainStep(server, ranks) as step:
            union_batch = UnionBatch(own=batch_of(None, 1), sizes=(1,) * ranks.size, counts=StepCounts(num_first=1))
            if kind is not StreamServer:
                step.run(union_batch, None, 0)
                server.on_step_end()
            step.finish()
            step.compare_saved()
        return list(step.warnings)

    first, *others = on_ranks(num_ranks, trained)
    expected = [text.format(kind.__name__) for text in said]
    assert [text[: len(start)] for text, start in zip(first, expected, strict=True)] == expected
    assert others == [[]] * (num_ranks - 1)


def test_a_rank_on_which_nothing_was_trained_is_told_nothing_of_it() -> None:
    def ended(ranks: Ranks) -> list[str]:
        server = Remembering(settings())
        server.union_mean = UnionMean(ranks)
        with PlainStep(server, ranks) as step:
            step.finish()
        return list(step.warnings)

    assert on_ranks(2, ended) == [[], []]


def test_arrays_of_a_class_that_saves_a_state_are_looked_at_and_those_of_others_are_not() -> None:
    for kind, looked_at in ((Remembering, {"table"}), (Forgetful, set())):
        server = kind(settings())
        server.table = np.zeros(3)  # type: ignore[attr-defined]
        assert set(PlainStep(server, SoloRanks()).unsaved()) == looked_at
