"""Large steps to a server on the same node, in each language: where they lie, and how long they stay there."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stream_server.messages import wire
from stream_server.messages.client import Away, Data, End, FieldSpec, Open, Reason, Refusal, TimeSteps
from stream_server.server.intake import client_segment, mailbox
from stream_server.server.intake.client_segment import SegmentPayload
from tests.client_api.clients import SMALL, Client, messages, received
from tests.fakes.server import FakeServer
from tests.native.conformance.values import values
from tests.native.native_client import NativeClient
from tests.support.reception import Crew, StudyShape, reception

NUM = 20_000
LARGE = (FieldSpec(name="u", shape=(NUM,)),)
BYTES = NUM * 8
TIMEOUT_S = 0.3


class SleepyServer(FakeServer):
    """While it is `silent`, it notes where the steps lie that it was sent: in an open segment, from a byte on."""

    def __enter__(self) -> "SleepyServer":
        super().__enter__()
        self.descriptors: dict[bytes, int] = {}
        self.unread: list[tuple[Data, int, int]] = []
        return self

    def _take(self, rank: int, peer: bytes, header: bytes, *payload: bytes) -> None:
        message = wire.decode(header)
        if isinstance(message, Open) and message.segment and peer not in self.descriptors:
            path = f"/proc/{message.segment.pid}/fd/{message.segment.descriptor}"
            self.descriptors[peer] = os.open(path, os.O_RDONLY)
        if isinstance(message, Data) and self.silent:
            assert message.in_segment
            self.unread.append((message, self.descriptors[peer], *wire.OFFSET.unpack(*payload)))
        super()._take(rank, peer, header, *payload)

    def close_segments(self) -> None:
        for descriptor in self.descriptors.values():
            os.close(descriptor)


@pytest.fixture
def server() -> Iterator[SleepyServer]:
    with SleepyServer(LARGE, num_ranks=1) as server:
        yield server
        server.close_segments()


def large(step: int) -> np.ndarray:
    return values("float64", (NUM,), step)


def send(client: Client, *steps: int) -> list[str]:
    return client.send(*steps, count=str(NUM))


def assert_arrived(server: FakeServer, num: int) -> None:
    assert sorted(index for _, index in server.steps) == list(range(num))
    assert all(np.array_equal(server.steps[7, index]["u"], large(index)) for index in range(num))


def ways(server: FakeServer) -> set[bool]:
    """Whether steps came through a segment."""
    return {it.in_segment for it in messages(server, Data)}


def test_large_steps_are_read_where_the_client_keeps_them(client: Client, server: FakeServer) -> None:
    client.connect(server)
    send(client, *range(9))
    assert client.ask("finish") == "ok"
    assert ways(server) == {True}
    assert_arrived(server, 9)


def test_the_ranks_of_a_server_read_what_was_sent(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Watched(SegmentPayload):
        def into(self, buffer: np.ndarray, /) -> int:
            read.append(super().into(buffer))
            return read[-1]

    monkeypatch.setattr(client_segment, "SegmentPayload", Watched)
    fields = (FieldSpec(name="u", shape=(NUM,), dtype="<f8"),)
    with reception(StudyShape(fields=fields, time_steps=TimeSteps(num=20), num_ranks=2)) as study:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        study.launch(0).write(tmp_path / "connection.json")
        assert client.ask(f"connect 0 1 connection={tmp_path / 'connection.json'}") == "ok"
        assert set(send(client, *range(20))) == {"ok"}
        assert client.ask("finish") == "ok"
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
    rows = {step: row["u"] for rank in study.ranks for (_, step), row in rank.rows.items()}
    assert sorted(rows) == list(range(20))
    assert all(np.array_equal(row, large(step)) for step, row in rows.items())
    assert sum(read) == 20 * BYTES


def test_a_step_that_a_socket_takes_in_parts_is_one_message(client: Client) -> None:
    num = 600_000
    with FakeServer((FieldSpec(name="u", shape=(num,)),), num_ranks=1) as server:
        client.connect(server)
        client.send(*range(3), count=str(num))
        assert client.ask("finish") == "ok"
        assert [it.in_segment for it in messages(server, Data)] == [True] * 3
        assert all(np.array_equal(server.steps[7, step]["u"], values("float64", (num,), step)) for step in range(3))


def test_small_steps_go_through_the_socket(client: Client) -> None:
    with FakeServer(SMALL) as server:
        client.connect(server)
        client.send(*range(9))
        assert client.ask("finish") == "ok"
        assert ways(server) == {False}


def test_a_server_that_does_not_read_there_gets_all_through_the_socket(client: Client, server: FakeServer) -> None:
    server.reads_segments = False
    client.connect(server)
    send(client, *range(9))
    assert client.ask("finish") == "ok"
    assert [bool(it.segment) for it in messages(server, Open)] == [True]
    assert ways(server) == {False}
    assert_arrived(server, 9)


def test_over_tcp_no_memory_is_offered(client: Client) -> None:
    with FakeServer(LARGE, num_ranks=1, transport="tcp") as server:
        client.connect(server)
        send(client, 0)
        assert client.ask("finish") == "ok"
        assert [bool(it.segment) for it in messages(server, Open)] == [False]
        assert_arrived(server, 1)


def test_what_finds_no_room_goes_through_the_socket(client: Client, server: FakeServer) -> None:
    server.window_bytes = 0
    server.credit = 500
    server.withholds_acks = True
    client.connect(server)
    send(client, *range(450))
    server.do_now(server.acknowledge_all)
    assert client.ask("finish") == "ok"
    assert ways(server) == {True, False}
    assert_arrived(server, 450)


def test_a_new_server_gets_the_steps_again_that_it_lacks(client: Client, server: FakeServer) -> None:
    client.connect(server)
    send(client, *range(9))
    server.wait_until(lambda: received(server) >= {0, 1, 2})
    server.move(incarnation=4, known={0, 1, 2})
    send(client, *range(9, 12))
    assert client.ask("finish") == "ok"
    # The last steps may be few, and a small message.
    assert {it.in_segment for it in messages(server, Data)[:-1]} == {True}
    assert_arrived(server, 12)


def test_many_steps_of_two_fields_arrive_however_many_travel_together(client: Client) -> None:
    fields = tuple(FieldSpec(name=name, shape=(1000,)) for name in "uv")
    with FakeServer(fields, num_ranks=1) as server:
        server.credit = 16
        client.connect(server)
        # Of the eight that may, seven travel together.
        for step in range(8):
            client.say(f"put u float64 1000 {step}", f"put v float64 1000 {step + 1}", f"send {step}")
        assert [client.hear() for _ in range(3 * 8)] == ["staged", "staged", "ok"] * 8
        assert client.ask("finish") == "ok"
        for (_, index), fields_of_step in server.steps.items():
            assert np.array_equal(fields_of_step["u"], values("float64", (1000,), index))
            assert np.array_equal(fields_of_step["v"], values("float64", (1000,), index + 1))
        assert len(server.steps) == 8


def test_the_next_simulation_of_a_worker_goes_through_a_segment_too(client: Client, server: FakeServer) -> None:
    client.work(server)
    send(client, 0)
    assert client.ask("next") == "ok"
    send(client, 0)
    server.do_now(lambda: server.answers_to_hello.append(Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")))
    assert client.ask("next") == "stop"
    assert ways(server) == {True}
    assert len(messages(server, End)) == 2


def test_a_server_that_only_slept_finds_what_it_was_sent(client: Client, server: SleepyServer) -> None:
    server.credit = 4
    server.window_bytes = 4 * BYTES
    server.if_server_away = Away.CONTINUE
    client.connect(server, f"timeout={TIMEOUT_S}")
    send(client, 0)
    server.wait_until(lambda: len(server.steps) == 1)
    server.do_now(lambda: setattr(server, "silent", True))
    send(client, *range(1, 40))
    assert sum(data.num_steps for data, *_ in server.unread) == 4
    for data, segment, place in server.unread:
        sent = b"".join(large(data.index + i).tobytes() for i in range(data.num_steps))
        assert os.pread(segment, len(sent), place) == sent
    client.complaint = "the server of study heat/1 is away"
    client.ask("finish")


def test_with_a_limit_of_file_sizes_a_program_is_not_ended(program: Path, tmp_path: Path, server: FakeServer) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -f 1000\nexec "{program}"\n')
    limited.chmod(0o755)
    with NativeClient(limited) as client:
        client.connect(server)
        send(client, *range(9))
        assert client.ask("finish") == "ok"
    assert [bool(it.segment) for it in messages(server, Open)] == [False]
    assert_arrived(server, 9)
