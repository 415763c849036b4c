"""Statistics of the stream on one rank and on several, over restarts."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_server.config import load
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.user.normalization import Normalization, Observed
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.examples import examples

STUDY = Path(__file__).parents[2] / "study" / "numpy_study" / "study.json"


def samples(num: int, seed: int = 0) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
    """Fields `u` of shape (2, 3) and `v` of shape (), and two parameters."""
    random = np.random.default_rng(seed)
    fields = {"u": random.normal(300, 40, (num, 2, 3)), "v": random.normal(-2, 0.5, num)}
    return fields, random.uniform(100, 500, (num, 2))


def normalization(ranks: Ranks | None = None, **options: Any) -> Normalization:
    return Normalization(ranks or SoloRanks(), {"u": (2, 3), "v": ()}, num_parameters=2, **options)


def at_batch(number: int) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(batches=number))


def observed(*blocks: Any, **options: Any) -> Normalization:
    it = normalization(**options)
    for block in blocks:
        it.observe(*block)
    it.sync()
    return it


def assert_are_those_of(it: Normalization, fields: dict[str, NDArray[Any]], parameters: NDArray[np.float64]) -> None:
    assert it.num_samples == len(parameters)
    for name, values in fields.items():
        np.testing.assert_allclose(it.mean[name], values.mean(0), rtol=1e-12)
        np.testing.assert_allclose(it.std[name], values.std(0), rtol=1e-12)
    np.testing.assert_allclose(it.parameters_mean, parameters.mean(0), rtol=1e-12)
    np.testing.assert_allclose(it.parameters_std, parameters.std(0), rtol=1e-12)


def rows(block: Any, chosen: NDArray[np.bool_]) -> Any:
    fields, parameters = block
    return {name: values[chosen] for name, values in fields.items()}, parameters[chosen]


@settings(max_examples=examples(25))
@given(
    num=st.integers(4, 60),
    seed=st.integers(0, 2**32),
    incarnations=st.lists(st.tuples(st.integers(1, 3), st.lists(st.booleans(), min_size=1, max_size=4)), max_size=3),
)
def test_any_split_over_ranks_batches_and_restarts_gives_the_moments_of_all(
    num: int, seed: int, incarnations: list[tuple[int, list[bool]]]
) -> None:
    block = samples(num, seed)
    # Each incarnation has a number of ranks, and batches after some of which the ranks come together.
    incarnations = [*incarnations, (2, [False, True])]
    random = np.random.default_rng(seed)
    cells = [
        (incarnation, batch, rank)
        for incarnation, (num_ranks, batches) in enumerate(incarnations)
        for batch in range(len(batches))
        for rank in range(num_ranks)
    ]
    cell_of = random.integers(0, len(cells), num)
    shared: dict[str, Any] | None = None
    left: list[Any] = []

    def run(ranks: ThreadRanks, incarnation: int) -> tuple[Any, Any, Normalization]:
        it = normalization(ranks)
        if shared is not None:
            it.load_state_dict(from_bytes(to_bytes(shared)))
            it.observed.load_state_dict(Observed.redealt(from_bytes(to_bytes(left)), ranks.rank, None))
        for batch, comes_together in enumerate(incarnations[incarnation][1]):
            it.observe(*rows(block, cell_of == cells.index((incarnation, batch, ranks.rank))))
            if comes_together:
                it.sync()
        return it.state_dict(), it.observed.state_dict(), it

    for incarnation, (num_ranks, _) in enumerate(incarnations):
        results = on_ranks(num_ranks, lambda ranks, incarnation=incarnation: run(ranks, incarnation))
        shared, left = results[0][0], [result[1] for result in results]
        assert all(to_bytes(result[0]) == to_bytes(shared) for result in results)
    assert_are_those_of(results[0][2], *block)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_all_ranks_hold_the_same_numbers_and_those_of_all_samples(num_ranks: int) -> None:
    block = samples(50)

    def run(ranks: ThreadRanks) -> tuple[bytes, Normalization]:
        it = normalization(ranks, every_batches=3)
        for batch in range(1, 9):
            it.observe(*rows(block, np.arange(50) % (8 * num_ranks) == 8 * ranks.rank + batch - 1))
            it.on_step_end(at_batch(batch))
        it.on_train_end(None)
        return to_bytes(it.state_dict()), it

    results = on_ranks(num_ranks, run)
    assert len({state for state, _ in results}) == 1
    assert_are_those_of(results[0][1], *block)


def test_ranks_come_together_every_so_many_batches_and_at_the_end() -> None:
    it = normalization(every_batches=4)
    counts = []
    for batch in range(1, 11):
        it.observe(*samples(1, batch))
        it.on_step_end(at_batch(batch))
        counts.append(it.num_samples)
    it.on_train_end(None)
    assert [*counts, it.num_samples] == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 10]


def test_before_the_first_sync_nothing_is_changed() -> None:
    it, values = normalization(), np.ones((5, 2, 3))
    it.observe(*samples(4))
    assert not it.is_ready
    assert it.normalize("u", values) is it.denormalize("u", values) is values
    assert it.normalize_parameters(values) is it.denormalize_parameters(values) is values
    assert (it.mean["v"], it.std["v"]) == (0, 0)


def test_normalised_data_have_mean_0_and_deviation_1() -> None:
    fields, parameters = samples(40)
    it = observed((fields, parameters))
    for values in (it.normalize("u", fields["u"]), it.normalize_parameters(parameters)):
        np.testing.assert_allclose(values.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(values.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(it.denormalize("u", it.normalize("u", fields["u"])), fields["u"], rtol=1e-12)
    back = it.denormalize_parameters(it.normalize_parameters(parameters))
    np.testing.assert_allclose(back, parameters, rtol=1e-12)


def test_a_field_may_be_flat_and_any_other_shape_is_refused() -> None:
    fields, parameters = samples(10)
    it = observed((fields, parameters))
    flat = it.normalize("u", fields["u"].reshape(10, 6))
    np.testing.assert_array_equal(flat, it.normalize("u", fields["u"]).reshape(10, 6))
    with pytest.raises(UserCodeError, match=r"of u go with arrays of shape \(…, 2, 3\) or \(…, 6\), .* of \(10, 5\)"):
        it.normalize("u", np.zeros((10, 5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_stays_a_tensor_of_its_type_and_has_a_gradient(dtype: torch.dtype) -> None:
    fields, parameters = samples(10)
    it = observed((fields, parameters))
    tensor = torch.from_numpy(fields["u"]).to(dtype).requires_grad_()
    normalized = it.normalize("u", tensor)
    assert normalized.dtype == dtype
    tolerance = {"rtol": 0.02, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(normalized.detach().double(), it.normalize("u", fields["u"]), **tolerance)
    normalized.sum().backward()
    assert tensor.grad is not None
    assert it.normalize("v", torch.arange(3)).dtype == torch.float64


@pytest.mark.parametrize(("dtype", "expected"), [(np.float32, np.float32), (np.int64, np.float64)])
def test_an_array_keeps_its_type_unless_it_is_of_whole_numbers(dtype: Any, expected: Any) -> None:
    it = observed(samples(10))
    assert it.normalize("v", np.arange(3, dtype=dtype)).dtype == expected
    assert it.denormalize("v", np.arange(3, dtype=dtype)).dtype == expected


def test_a_constant_is_divided_by_1() -> None:
    it = observed(({"u": np.full((5, 2, 3), 7.0), "v": np.arange(5.0)}, np.ones((5, 2))))
    assert it.normalize("u", np.full((2, 3), 9.0)).tolist() == [[2.0] * 3] * 2
    assert it.std["u"].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("scale", "shift", "names"),
    [(1, 0, ""), (3, 4, ""), (1, 40, "v"), (20, 0, "v"), (1, 1e4, "u, v")],
)
def test_statistics_far_from_those_of_what_comes_next_are_told_once(scale: float, shift: float, names: str) -> None:
    it, (fields, parameters) = normalization(), samples(20)
    it.observe(fields, parameters)
    it.sync()
    for _ in range(2):
        it.observe({"u": fields["u"] + shift, "v": fields["v"] * scale + shift / 4}, parameters)
        it.sync()
    told = [re.sub(r" \(root mean square [^)]*\)", "", text) for text in it.warnings]
    assert [text.split("far from order one: ")[1].split(".")[0] for text in told] == ([names] if names else [])


def test_one_rank_freezes_all_at_the_next_sync() -> None:
    def run(ranks: ThreadRanks) -> list[tuple[bool, int]]:
        it = normalization(ranks)
        told = []
        for batch in range(3):
            it.observe(*samples(2, batch))
            if batch == 1 and ranks.rank == 1:
                it.freeze()
            it.sync()
            told.append((it.frozen, it.num_samples))
        return told

    assert on_ranks(2, run) == [[(False, 4), (True, 8), (True, 8)]] * 2


def test_statistics_freeze_by_themselves_after_enough_samples() -> None:
    it = normalization(freeze_after=5)
    for batch in range(4):
        it.observe(*samples(3, batch))
        it.sync()
    assert (it.frozen, it.is_observing, it.num_samples) == (True, False, 6)


def test_what_was_asked_before_a_restart_is_still_asked_for() -> None:
    before, after = normalization(), normalization()
    before.observe(*samples(3))
    before.freeze()
    after.observed.load_state_dict(before.observed.state_dict())
    after.sync()
    assert (after.frozen, after.num_samples) == (True, 3)


def test_a_state_is_not_changed_by_what_comes_later() -> None:
    it = observed(samples(3))
    state, bytes_before = it.state_dict(), to_bytes(it.state_dict())
    it.observe(*samples(3, 1))
    it.sync()
    assert to_bytes(state) == bytes_before != to_bytes(it.state_dict())


def test_an_optional_field_counts_where_it_was_sent() -> None:
    it = normalization()
    fields, parameters = samples(6)
    it.observe({**fields, "v": fields["v"][:2]}, parameters)
    it.sync()
    assert it.num_samples == 6
    assert it.arrays()["fields.v.count"] == 2
    np.testing.assert_allclose(it.mean["v"], fields["v"][:2].mean(), rtol=1e-12)


def test_values_that_come_late_are_no_jump_of_the_statistics() -> None:
    it = normalization()
    fields, parameters = samples(20)
    it.observe({**fields, "v": fields["v"][:0]}, parameters)
    it.sync()
    it.observe({**fields, "v": fields["v"] + 1e4}, parameters)
    it.sync()
    assert it.warnings == []


def test_statistics_that_nobody_asked_for_are_missed_with_the_key_to_write() -> None:
    it = Normalization(SoloRanks(), {"u": ()})
    with pytest.raises(ConfigError, match=r'statistics of w: write "w" in normalization\.fields'):
        it.normalize("w", np.zeros(3))
    with pytest.raises(ConfigError, match=r"write normalization\.parameters: true"):
        it.normalize_parameters(np.zeros(3))


def test_statistics_of_other_shapes_are_refused_with_both() -> None:
    state = observed(samples(3)).state_dict()
    it = Normalization(SoloRanks(), {"u": ()})
    with pytest.raises(ConfigError, match=r"asks for fields\.u \(\), but what was saved is fields\.u \(2, 3\), field"):
        it.load_state_dict(state)


def test_a_study_without_statistics_never_meets_for_them() -> None:
    class NoMeeting(SoloRanks):
        def all_reduce(self, values: Any) -> Any:
            raise AssertionError("all_reduce")

    it = Normalization(NoMeeting())
    it.observe({}, np.zeros((3, 2)))
    it.on_step_end(at_batch(10))
    it.on_train_end(None)
    assert (it.is_ready, it.is_observing, it.num_samples) == (True, False, 0)


@pytest.mark.parametrize(("per", "shape"), [("field", ()), ("value", (8,))])
def test_study_json_says_what_is_kept(per: str, shape: Sequence[int]) -> None:
    section = {"fields": ["signal"], "parameters": True, "per": per, "every_batches": 7, "freeze_after": 4}
    overrides = [f"normalization.{key}={json.dumps(value)}" for key, value in section.items()]
    it = Normalization.of(load(STUDY, overrides), num_parameters=2)
    assert it.fields == ("signal",)
    assert (it.mean["signal"].shape, it.parameters_mean.shape) == (shape, (2,))
    it.observe({"signal": np.ones((5, 8))}, np.ones((5, 2)))
    it.on_step_end(at_batch(7))
    assert (it.num_samples, it.frozen) == (5, True)
