"""Writing parts of blocks into rows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.server.intake.filling import all_finite, assign, side_by_side


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_a_range_of_elements_lands_in_the_c_order_of_any_block(shape: list[int], choices: st.DataObject) -> None:
    full = np.zeros([size + 2 for size in shape])
    block = full[(*(slice(1, 1 + size) for size in shape), ...)]
    size = math.prod(shape)
    start = choices.draw(st.integers(0, size - 1))
    stop = choices.draw(st.integers(start + 1, size))
    assign(block, start, np.arange(start, stop) + 1.0)
    expected = np.zeros(size)
    expected[start:stop] = np.arange(start, stop) + 1.0
    np.testing.assert_array_equal(block, expected.reshape(shape))
    assert full.sum() == expected.sum()


@pytest.mark.parametrize(
    ("slots", "expected"),
    [([4], slice(4, 5)), ([4, 5, 6], slice(4, 7)), ([4, 6, 5, 7], None), ([5, 4], None), ([1, 3], None)],
)
def test_slots_side_by_side_in_order_are_a_slice(slots: list[int], expected: slice | None) -> None:
    assert side_by_side(slots) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_value_is_found(value: float) -> None:
    values = np.ones((3, 4), np.float32)
    assert all_finite(values)
    values[2, 1] = value
    assert not all_finite(values)
    assert all_finite(np.ones(3, np.int64))
