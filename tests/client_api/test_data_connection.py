"""Credit and pending steps of a connection, and sets of bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_server.client_api.data_connection import FlowControl, PendingSteps
from stream_server.client_api.retention import Bits
from stream_server.messages.client import Block

BLOCKS = [
    Block(field="u", dtype="<f8", shape=(2,), offset=(0,), count=(2,)),
    Block(field="e", dtype="<i4", shape=(), offset=(), count=()),
]


def test_a_step_in_parts_is_acknowledged_with_its_last_part() -> None:
    flow = FlowControl(4)
    flow.sent(num_steps=1, num_messages=3)
    flow.received(2)
    assert flow.room == 3
    flow.received(3)
    assert flow.room == 4


def test_marks_are_cumulative_and_may_repeat() -> None:
    flow = FlowControl(8)
    for num_steps in (2, 3, 1):
        flow.sent(num_steps=num_steps, num_messages=1)
    flow.received(2)
    flow.received(1)
    flow.received(2)
    assert flow.room == 7


def test_only_a_neighbour_with_the_same_fields_joins_pending_steps() -> None:
    pending = PendingSteps(BLOCKS, capacity=4, stride=3)
    pending.add(5, 0b11, [np.zeros(2), np.array(1)])
    assert pending.fits(8, 0b11)
    assert not pending.fits(8, 0b01)
    assert not pending.fits(6, 0b11)
    assert not pending.fits(5, 0b11)


def test_pending_steps_of_a_block_lie_side_by_side() -> None:
    pending = PendingSteps(BLOCKS, capacity=4, stride=1)
    pending.add(0, 0b11, [np.array([1.0, 2.0]), np.array(7)])
    pending.add(1, 0b11, [np.array([3.0, 4.0]), np.array(8)])
    indices, present, [u, e] = pending.take()
    assert (indices, present) == (range(2), 0b11)
    assert u.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert e.tolist() == [7, 8]
    assert pending.num == 0


@given(st.lists(st.integers(0, 200)), st.binary(max_size=10))
def test_bits_are_a_set_of_numbers(numbers: list[int], content: bytes) -> None:
    bits = Bits(content)
    expected = {i for i in range(8 * len(content)) if content[i // 8] >> i % 8 & 1}
    for number in numbers:
        bits.add(number)
        expected.add(number)
    assert {i for i in range(300) if i in bits} == expected
