"""Writing parts of blocks into rows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.messages import wire
from stream_server.messages.client import MAX_PART_BYTES, Block, FieldSpec
from stream_server.server.intake.filling import all_finite, assign, side_by_side
from tests.fakes.intakes import data, make, opened, opening
from tests.support.intake_ranks import Frames


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


def test_rows_that_two_client_ranks_send_in_parts_come_together_in_their_order() -> None:
    num = MAX_PART_BYTES // 8
    ragged = FieldSpec(name="x", shape=(3 * num,), dtype="<f8", ragged=True)
    rows = Block(field="x", dtype="<f8", shape=ragged.shape, offset=(0,), count=ragged.shape)
    buffer = Buffer(Fifo(capacity=2), Slots({"x": ragged.shape}, 4, ragged=["x"]))
    intake = make(fields=[ragged], buffer=buffer, credit=1, credit_slots=1)
    intake.begin_attempt(0, 0)
    for client in [opened(intake, opening(rows, rank=rank, num_ranks=2)) for rank in range(2)]:
        values = np.arange(num + 1.0) + client.rank
        for start in (0, num):
            message = data(client, 0, field=0, offset=8 * start, last=start > 0)
            [header, *frames] = wire.encode(message, [values[start : start + num]])
            assert intake.assembly.take(client, message, bytes(header), Frames(frames)) is None
    intake.flush()
    [together] = buffer.contents().fields["x"]
    np.testing.assert_array_equal(together, [*np.arange(num + 1.0), *np.arange(num + 1.0) + 1.0])
