"""Memory that a client shares with servers on its node: how it is cut, used again, and what happens without it."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.client_api import connect, data_connection
from stream_server.client_api.data_connection import SEGMENT_FROM_BYTES
from stream_server.client_api.segment import HEAD_BYTES, RetentionSegment
from stream_server.client_api.simulation import Simulation
from stream_server.messages.client import Data, FieldSpec, Open
from tests.client_api.clients import messages
from tests.fakes.server import FakeServer

PAGE = HEAD_BYTES
LARGE = SEGMENT_FROM_BYTES // 8
U = (FieldSpec(name="u", shape=(LARGE,)),)


def made(num_bytes: int) -> RetentionSegment:
    segment = RetentionSegment.make(num_bytes)
    assert segment is not None
    return segment


def used_bytes(descriptor: int) -> int:
    """The bytes of memory that the system has given for a memfd."""
    return os.fstat(descriptor).st_blocks * 512


def value(step: int) -> np.ndarray:
    return np.arange(LARGE) + 1000.0 * step


@given(st.lists(st.tuples(st.integers(1, 3 * PAGE), st.integers(0, 5)), max_size=40))
def test_no_block_is_overwritten_while_anything_refers_to_it(actions: list[tuple[int, int]]) -> None:
    segment = made(20 * PAGE)
    held: list[tuple[bytes, memoryview]] = []
    for number, (size, forgotten) in enumerate(actions):
        content = np.full(size, number, np.uint8)
        stored = segment.store([content[: size // 2], content[size // 2 :]])
        if stored is not None:
            start, pieces = stored
            assert start >= HEAD_BYTES
            # An array of a step refers to its memory, too, without the piece that it was made of.
            held.append((content.tobytes()[size // 2 :], np.frombuffer(pieces[1], np.uint8).data))
            del pieces
        del stored
        if forgotten < len(held):
            del held[forgotten]
        assert all(bytes(memory) == before for before, memory in held)
    held.clear()
    # All is one piece again.
    assert segment.store([np.zeros(20 * PAGE, np.uint8)]) is not None
    segment.close()


def test_memory_that_is_free_again_is_used_before_other_memory() -> None:
    segment = made(1 << 20)
    before = used_bytes(segment.offer.descriptor)
    for _ in range(100):
        assert segment.store([np.ones(3 * PAGE, np.uint8)]) is not None
    assert used_bytes(segment.offer.descriptor) <= before + 6 * PAGE
    segment.close()


def test_a_segment_that_is_full_stores_nothing() -> None:
    segment = made(2 * PAGE)
    kept = segment.store([np.ones(PAGE + 1, np.uint8)])
    assert kept is not None
    assert segment.store([np.ones(1, np.uint8)]) is None
    del kept
    assert segment.store([np.ones(1, np.uint8)]) is not None
    segment.close()


@contextmanager
def limited(limit: int, num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


@pytest.mark.parametrize("limit", [resource.RLIMIT_FSIZE, resource.RLIMIT_AS])
def test_a_process_that_may_not_have_one_sends_through_sockets(limit: int) -> None:
    with FakeServer(U, num_ranks=1) as server:
        simulation = connect(server.path, simulation_id=7)
        with limited(limit, 1 << 20):
            # It opens its connections here.
            assert simulation.send(0, u=value(0))
        simulation.finish()
        assert np.array_equal(server.steps[7, 0]["u"], value(0))
        assert not any(message.segment for message in messages(server, Open))
        assert not any(message.in_segment for message in messages(server, Data))


def send(simulation: Simulation, *steps: int) -> None:
    for step in steps:
        assert simulation.send(step, u=value(step))


def assert_has(server: FakeServer, *steps: int) -> None:
    for step in steps:
        assert np.array_equal(server.steps[7, step]["u"], value(step))


@pytest.mark.parametrize("transport", ["ipc", "tcp", "curve"])
def test_large_steps_go_through_the_segment_on_the_node_of_the_server_alone(transport: str) -> None:
    with FakeServer(U, num_ranks=2, transport=transport) as server:
        with connect(server.path, simulation_id=7) as simulation:
            send(simulation, *range(20))
        assert_has(server, *range(20))
        assert {message.in_segment for message in messages(server, Data)} == {transport == "ipc"}


def test_a_server_that_does_not_read_it_gets_all_through_sockets() -> None:
    with FakeServer(U, num_ranks=1) as server:
        server.reads_segments = False
        with connect(server.path, simulation_id=7) as simulation:
            send(simulation, *range(5))
        assert_has(server, *range(5))
        assert not any(message.in_segment for message in messages(server, Data))


def test_small_messages_and_ragged_fields_go_through_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "MESSAGE_BYTES", 1)
    fields = (FieldSpec(name="u", shape=(LARGE,), optional=True), FieldSpec(name="v", shape=(3,)))
    ragged = (*fields, FieldSpec(name="r", shape=(2,), ragged=True))
    for specs, in_segment in ((fields, {False, True}), (ragged, {False})):
        with FakeServer(specs, num_ranks=1) as server:
            with connect(server.path, simulation_id=7) as simulation:
                for step in range(2):
                    more = {"r": np.ones(1)} if specs is ragged else {}
                    simulation.send(step, v=np.ones(3), **({"u": value(step)} if step == 0 else {}), **more)
            assert_has(server, 0)
            assert {message.in_segment for message in messages(server, Data)} == in_segment


def test_what_a_new_server_lacks_is_sent_again_from_the_retained_blocks() -> None:
    with FakeServer(U, num_ranks=2) as server:
        with connect(server.path, simulation_id=7) as simulation:
            send(simulation, *range(10))
            server.move(incarnation=4, known={0, 3})
            send(simulation, *range(10, 12))
        assert_has(server, *({*range(12)} - {0, 3}))
        assert all(message.in_segment for message in messages(server, Data))


def test_the_memory_of_a_client_does_not_grow_beyond_its_window_and_what_is_on_its_way() -> None:
    with FakeServer(U, num_ranks=1) as server:
        server.window_bytes, server.credit = 10 * 8 * LARGE, 4
        with connect(server.path, simulation_id=7) as simulation:
            send(simulation, *range(100))
            assert simulation._session is not None
            assert simulation._session._segment is not None
            assert used_bytes(simulation._session._segment.offer.descriptor) < (10 + 4 + 3) * 8 * LARGE


def test_a_forked_child_that_does_not_send_leaves_the_parent_undisturbed() -> None:
    with FakeServer(U, num_ranks=1) as server:
        with connect(server.path, simulation_id=7) as simulation:
            send(simulation, 0)
            child = os.fork()
            if not child:
                del simulation
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            send(simulation, 1, 2)
        assert_has(server, 0, 1, 2)
