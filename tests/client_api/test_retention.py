"""The sent steps that a client rank keeps."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.client_api.retention import ENTRY_BYTES, Bits, OrderedSteps, RetainedSteps, Retention, Steps
from stream_server.messages.client import Block

BLOCKS = [
    Block(field="u", dtype="<f8", shape=(2,), offset=(0,), count=(2,)),
    Block(field="e", dtype="<i4", shape=(), offset=(), count=()),
]
NUM_BYTES = 100


def steps(*indices: int, num_bytes: int = NUM_BYTES) -> Steps:
    """So many bytes in all, the entry included."""
    stride = indices[1] - indices[0] if len(indices) > 1 else 1
    content = memoryview(bytes(num_bytes * len(indices)))
    return Steps(range(indices[0], indices[-1] + 1, stride), 1, [[content]])


def kept(*of_connections: RetainedSteps) -> list[int]:
    return sorted(index for retained in of_connections for sent in retained.sent for index in sent.steps.indices)


def retention_for(num_messages: int) -> Retention:
    return Retention(max_bytes=num_messages * (NUM_BYTES + ENTRY_BYTES))


def test_what_is_durable_is_kept_no_longer() -> None:
    retention = retention_for(100)
    retained = retention.of_connection()
    for index in range(5):
        retained.add(index + 1, steps(index))
    retained.durable(3)
    assert kept(retained) == [3, 4]
    assert retention.num_bytes == 2 * (NUM_BYTES + ENTRY_BYTES)
    retained.durable(2)
    retained.durable(5)
    assert kept(retained) == []
    assert retention.num_bytes == 0


def test_a_step_in_parts_is_durable_with_its_last_part() -> None:
    retained = retention_for(100).of_connection()
    retained.add(3, steps(0))
    retained.durable(2)
    assert kept(retained) == [0]
    retained.durable(3)
    assert kept(retained) == []


def test_the_oldest_received_steps_of_all_connections_make_room() -> None:
    retention = retention_for(4)
    even, odd = retention.of_connection(), retention.of_connection()
    for end in (1, 2):
        even.add(end, steps(2 * end - 2))
        odd.add(end, steps(2 * end - 1))
    even.received = odd.received = 2
    even.add(3, steps(4))
    assert kept(even, odd) == [1, 2, 3, 4]
    odd.add(3, steps(5))
    assert kept(even, odd) == [2, 3, 4, 5]


def test_what_was_not_received_is_kept_though_it_does_not_fit() -> None:
    retention = retention_for(2)
    fast, slow = retention.of_connection(), retention.of_connection()
    slow.add(1, steps(0))
    slow.add(2, steps(1))
    fast.received = 1
    fast.add(1, steps(2))
    assert kept(slow, fast) == [0, 1]
    slow.received = 1
    slow.add(3, steps(3))
    assert kept(slow, fast) == [1, 3]


def test_what_was_set_aside_comes_back_in_the_order_in_which_it_was_sent() -> None:
    retention = retention_for(100)
    first, second = retention.of_connection(), retention.of_connection()
    for retained, index in ((first, 8), (second, 7), (first, 6), (second, 5)):
        retained.add(1, steps(index))
    retention.set_aside([8, 7, 6, 5])
    assert list(retention.unsent) == [8, 7, 6, 5]
    retention.forget(7)
    retention.forget(7)
    again = retention.of_connection()
    again.add(1, steps(4))
    retention.set_aside([8, 7, 6, 5, 4])
    assert list(retention.unsent) == [8, 6, 5, 4]


def test_of_what_was_sent_twice_the_first_comes_back() -> None:
    retention = retention_for(100)
    retained = retention.of_connection()
    for end, value in enumerate((1.0, 2.0)):
        content = np.array([value, value])
        retained.add(end + 1, Steps(range(1), 1, [[content.view(np.uint8).data]]))
    retention.set_aside([0])
    [array] = retention.unsent[0].arrays(0, BLOCKS)
    assert array.tolist() == [1.0, 1.0]


def test_unsent_steps_go_only_where_they_may() -> None:
    retention = retention_for(3)
    for index in range(5):
        retention.keep(index, steps(index))
    assert list(retention.unsent) == [0, 1, 2, 3, 4]
    retention.unsent_may_go = True
    retention.keep(5, steps(5))
    assert list(retention.unsent) == [3, 4, 5]


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_a_step_comes_back_as_it_was_sent(num_pieces: int) -> None:
    u, e = np.arange(6.0).reshape(3, 2), np.array([7, 8, 9], "<i4")
    content = u.tobytes()
    cuts = [content] if num_pieces == 1 else [content[:20], content[20:]]
    both = Steps(range(1, 10, 4), 0b11, [[memoryview(it) for it in cuts], [memoryview(e.tobytes())]])
    assert [it.tolist() for it in both.arrays(5, BLOCKS)] == [[2.0, 3.0], 8]
    only_e = Steps(range(3), 0b10, [[memoryview(e.tobytes())]])
    assert [it.tolist() for it in only_e.arrays(2, BLOCKS)] == [9]


def test_bits_are_a_growing_set() -> None:
    bits = Bits(b"\x05")
    assert [number for number in range(100) if number in bits] == [0, 2]
    assert [bits.add(number) for number in (9, 9, 16, 33, 2)] == [True, False, True, True, False]
    assert [number for number in range(100) if number in bits] == [0, 2, 9, 16, 33]


def test_entered_steps_are_remembered_once_and_in_order() -> None:
    entered = OrderedSteps()
    assert [entered.add(index) for index in (5, 3, 5, 900, 3)] == [True, True, False, True, False]
    assert list(entered) == [5, 3, 900]


class Model:
    """The same in the simplest way: one list of messages, from old to new."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.messages: list[tuple[int, int, Sequence[int], int]] = []
        self.received: dict[int, int] = {}

    def add(self, connection: int, end: int, indices: Sequence[int], num_bytes: int) -> None:
        self.messages.append((connection, end, indices, num_bytes))
        while sum(it[3] for it in self.messages) > self.max_bytes:
            # Only the oldest of each connection may go, and it is the first of it here.
            received = [it for it in self.messages if it[1] <= self.received.get(it[0], 0)]
            if not received:
                return
            self.messages.remove(received[0])

    def durable(self, connection: int, mark: int) -> None:
        self.messages = [it for it in self.messages if it[0] != connection or it[1] > mark]

    @property
    def indices(self) -> list[int]:
        return sorted(index for message in self.messages for index in message[2])


actions = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.sampled_from(["received", "durable"]), st.integers(0, 2), st.integers(0, 12)),
)


@given(st.lists(actions, max_size=60), st.integers(1, 10))
def test_retention_keeps_what_a_simple_model_keeps(script: list[tuple[str, int, int]], num_messages: int) -> None:
    max_bytes = num_messages * (NUM_BYTES + ENTRY_BYTES)
    retention, model = Retention(max_bytes=max_bytes), Model(max_bytes)
    of_connections = [retention.of_connection() for _ in range(3)]
    ends, next_index = [0, 0, 0], 0
    for action, connection, number in script:
        retained = of_connections[connection]
        if action == "send":
            ends[connection] += 1
            indices = range(next_index, next_index + number)
            next_index += number
            sent = steps(*indices)
            retained.add(ends[connection], sent)
            model.add(connection, ends[connection], indices, number * sent.bytes_per_step)
            bound = max(max_bytes, sum(it[3] for it in model.messages))
            assert retention.num_bytes <= bound
        elif action == "received":
            mark = max(retained.received, min(number, ends[connection]))
            retained.received = model.received[connection] = mark
        else:
            mark = min(number, retained.received)
            retained.durable(mark)
            model.durable(connection, mark)
        assert kept(*of_connections) == model.indices
        assert retention.num_bytes == sum(it[3] for it in model.messages)
    retention.set_aside(range(next_index))
    assert list(retention.unsent) == model.indices
    for index in model.indices:
        retention.forget(index)
    assert retention.num_bytes == 0
