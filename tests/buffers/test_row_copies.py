"""Rows that several threads copy are those that one thread copies."""

import threading
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.buffers import row_copies
from stream_server.buffers.row_copies import RowCopies


@given(num=st.integers(0, 40), num_threads=st.integers(1, 9), window=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
def test_each_row_is_where_it_belongs(num: int, num_threads: int, window: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    array = random.random((13, 2, 3), np.float32)
    shape = (num, window) if window else (num,)
    rows = random.integers(len(array), size=shape)
    out = np.full((*shape, 2, 3), np.nan, np.float32)
    copies = RowCopies(num_threads)
    with mock.patch.object(row_copies, "PARALLEL_BYTES", 0):
        assert copies.take(array, rows, out) is out
    copies.close()
    np.testing.assert_array_equal(out, array[rows])


def test_threads_begin_with_the_first_batch_that_is_large_enough_and_end() -> None:
    before = set(threading.enumerate())
    copies, array = RowCopies(3), np.ones((4, row_copies.PARALLEL_BYTES // 4), np.uint8)
    copies.take(array, np.array([1, 2]), np.empty_like(array, shape=(2, array.shape[1])))
    assert set(threading.enumerate()) == before
    copies.take(array, np.array([1, 2, 3, 0]), np.empty_like(array))
    assert 1 <= len(set(threading.enumerate()) - before) <= 3
    copies.close()
    assert set(threading.enumerate()) == before


def test_an_error_of_one_thread_is_raised() -> None:
    copies = RowCopies(2)
    with mock.patch.object(row_copies, "PARALLEL_BYTES", 0), pytest.raises(TypeError):
        copies.take(np.ones((4, 2)), np.array([0.5, 1.5]), np.empty((2, 2)))
    copies.close()
