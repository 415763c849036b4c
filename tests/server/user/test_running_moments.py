"""Running moments against NumPy's over all data at once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_server.server.user.normalization import Moments

PIECES = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def data(num: int, seed: int, *shape: int) -> NDArray[np.float64]:
    """Rows whose values have means and spreads of their own."""
    random = np.random.default_rng(seed)
    return random.normal(random.uniform(-300, 300, shape), random.uniform(0.5, 20, shape), (num, *shape))


def moments_of(*blocks: NDArray[Any], shape: tuple[int, ...] = ()) -> Moments:
    moments = Moments(shape)
    for block in blocks:
        moments.update(block)
    return moments


def assert_are_those_of(moments: Moments, rows: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(moments.count, np.full(rows.shape[1:], len(rows)))
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-12)


@given(sizes=PIECES, seed=st.integers(0, 2**32))
def test_blocks_of_any_size_give_the_moments_of_all_rows(sizes: list[int], seed: int) -> None:
    rows = data(sum(sizes) + 1, seed, 3)
    assert_are_those_of(moments_of(*np.split(rows, np.cumsum(sizes)), shape=(3,)), rows)


@given(sizes=PIECES, seed=st.integers(0, 2**32))
def test_the_order_of_merging_does_not_matter(sizes: list[int], seed: int) -> None:
    rows = data(sum(sizes) + 1, seed, 2)
    parts = [moments_of(block, shape=(2,)) for block in np.split(rows, np.cumsum(sizes))]
    for order in (parts, parts[::-1]):
        merged = Moments((2,))
        for part in order:
            merged.merge(part)
        assert_are_those_of(merged, rows)


def test_no_digits_cancel_beside_a_large_mean() -> None:
    rows = 1e9 + np.tile([[-1.0], [1.0]], (500, 1))
    moments = moments_of(*np.split(rows, 10), shape=(1,))
    assert moments.variance == pytest.approx(1.0, rel=1e-12)
    assert moments.mean == pytest.approx(1e9, rel=1e-15)


def test_without_a_shape_all_values_of_a_block_are_of_one_kind() -> None:
    rows = data(30, 1, 4, 5)
    moments = moments_of(rows[:7], rows[7:])
    assert_are_those_of(moments, rows.reshape(-1))
    assert moments.mean.shape == ()


def test_a_block_larger_than_a_chunk_is_taken_in_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_server.server.user.normalization._CHUNK_VALUES", 10)
    rows = data(23, 2, 4)
    assert_are_those_of(moments_of(rows, shape=(4,)), rows)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_, np.float16])
def test_sums_are_in_double_precision_whatever_was_sent(dtype: Any) -> None:
    rows = np.full((4000, 1), 1, dtype)
    rows[::2] = 0
    moments = moments_of(rows, shape=(1,))
    assert (moments.mean.dtype, moments.mean.item(), moments.variance.item()) == (np.float64, 0.5, 0.25)


def test_elements_that_are_not_finite_are_left_out() -> None:
    rows = np.array([[1.0, np.nan], [3.0, 5.0], [np.inf, 7.0]])
    moments = moments_of(rows, shape=(2,))
    assert moments.count.tolist() == [2, 2]
    assert moments.mean.tolist() == [2, 6]
    assert moments.variance.tolist() == [1, 1]


def test_nothing_seen_is_a_variance_of_0() -> None:
    moments = moments_of(np.empty((0, 2)), np.full((1, 2), np.nan), shape=(2,))
    assert (moments.count.tolist(), moments.mean.tolist(), moments.variance.tolist()) == ([0, 0], [0, 0], [0, 0])


def test_a_constant_has_a_variance_of_exactly_0() -> None:
    rows = np.full((1000, 1), 0.1)
    assert moments_of(*np.split(rows, 10), shape=(1,)).variance.item() == 0


def test_the_state_goes_on_and_shares_nothing() -> None:
    rows = data(20, 3, 2)
    moments = moments_of(rows[:5], shape=(2,))
    state = moments.state_dict()
    other = Moments.from_state(state)
    state["mean"][:] = 0
    for each in (moments, other):
        each.update(rows[5:])
        assert_are_those_of(each, rows)
    np.testing.assert_array_equal(other.m2, moments.m2)
