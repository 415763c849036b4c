"""Whole steps that lie in a client's memory: which memory the server reads, and what it refuses there."""

import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from stream_server.client_api import data_connection
from stream_server.client_api.segment import NAME, RetentionSegment
from stream_server.messages import notices, wire
from stream_server.messages.client import FieldSpec, Opened, Reason, Refusal, SegmentOffer, TimeSteps
from stream_server.server.intake.client_segment import LINK, ClientSegment
from stream_server.server.intake.filling import Payload, Unfit
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.intake_ranks import Frames
from tests.support.reception import DEADLINE_S, Crew, RawClient, Reception, StudyShape, reception
from tests.support.timing import until

NUM_BYTES = 1 << 20
OTHER_TOKEN = "0" * 32
LARGE = FieldSpec(name="u", shape=(3, 5000))


@pytest.fixture
def segment() -> Iterator[RetentionSegment]:
    made = RetentionSegment.make(NUM_BYTES)
    assert made is not None
    yield made
    made.close()


@contextmanager
def opened(offer: SegmentOffer) -> Iterator[ClientSegment]:
    found = ClientSegment.open(offer)
    assert found is not None
    yield found
    found.close()


def at(offset: int) -> Frames:
    """The rest of a message whose steps lie there."""
    return Frames([wire.OFFSET.pack(offset)])


def test_blocks_are_read_one_behind_the_other_into_memory_or_as_frames(segment: RetentionSegment) -> None:
    u, v = np.arange(6.0), np.arange(3, dtype=np.int16)
    stored = segment.store([u, v])
    assert stored is not None
    into = np.zeros((2, 3))
    with opened(segment.offer) as found:
        payload = found.payload(at(stored[0]), [u.nbytes, v.nbytes])
        assert payload.into(into) == u.nbytes
        assert payload.more()
        assert np.frombuffer(payload.frame(), np.int16).tolist() == v.tolist()
        assert not payload.more()
    assert into.ravel().tolist() == u.tolist()


def test_a_block_that_one_call_does_not_read_takes_several(
    segment: RetentionSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reads 2 GiB at most."""
    preadv, sent, into = os.preadv, np.arange(100.0), np.zeros(100)
    stored = segment.store([sent])
    assert stored is not None
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: preadv(file, [buffers[0][:99]], at))
    with opened(segment.offer) as found:
        assert found.payload(at(stored[0]), [sent.nbytes]).into(into) == sent.nbytes
    assert into.tolist() == sent.tolist()


def test_memory_that_the_system_fails_to_read_is_refused(
    segment: RetentionSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*unused: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(segment.offer) as found:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(Unfit, match="cannot be read: Input/output error") as unfit:
            found.payload(at(4096), [8]).into(np.zeros(1))
    assert unfit.value.reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "changes",
    [
        {"token": OTHER_TOKEN},
        {"bytes": 1 << 40},
        {"descriptor": 10_000},
        # No process has this number.
        {"pid": 1 << 40},
    ],
)
def test_memory_that_is_not_as_it_was_offered_is_not_read(segment: RetentionSegment, changes: dict[str, Any]) -> None:
    assert ClientSegment.open(replace(segment.offer, **changes)) is None


def test_only_a_memfd_of_this_name_is_opened(segment: RetentionSegment, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    (tmp_path / "file").write_bytes(bytes.fromhex(OTHER_TOKEN) * 2)
    file, other = os.open(tmp_path / "file", os.O_RDONLY), os.memfd_create(f"{NAME}-2")
    os.write(other, bytes(32))
    try:
        for descriptor in (reader, file, other):
            offer = replace(segment.offer, descriptor=descriptor, bytes=16, token=OTHER_TOKEN)
            assert ClientSegment.open(offer) is None
    finally:
        for descriptor in (reader, writer, file, other):
            os.close(descriptor)


def test_three_quarters_of_the_open_files_are_left_to_connections(segment: RetentionSegment) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * num_open, before[1]))
    try:
        assert ClientSegment.open(segment.offer) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([], "one frame"),
        ([b"1234567"], "one frame"),
        ([bytes(8), b""], "one frame"),
        ([wire.OFFSET.pack(NUM_BYTES)], "within"),
        ([wire.OFFSET.pack(2**64 - 1)], "within"),
    ],
)
def test_a_place_that_is_none_is_malformed(segment: RetentionSegment, frames: list[bytes], complaint: str) -> None:
    with opened(segment.offer) as found, pytest.raises(Unfit, match=complaint) as unfit:
        found.payload(Frames(frames), [8192])
    assert unfit.value.reason is Reason.MALFORMED


@contextmanager
def studied(segment: RetentionSegment, **changes: object) -> Iterator[tuple[Reception, RawClient, Opened]]:
    """A client of one step that has offered its memory, and what it was answered."""
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            answer = client.ask(opening(segment=replace(segment.offer, **changes)))
            assert isinstance(answer, Opened)
            yield study, client, answer
            study.first.buffer.close()


def test_a_step_comes_from_the_segment_or_through_the_socket_message_by_message(segment: RetentionSegment) -> None:
    with studied(segment) as (study, client, answer):
        assert answer.segment is True
        kept = [segment.store([value(0, step)]) for step in range(4)]
        for step, stored in enumerate(kept):
            assert stored is not None
            in_segment = step % 3 > 0
            payload = wire.OFFSET.pack(stored[0]) if in_segment else value(0, step).tobytes()
            client.say(data(step, step, in_segment=in_segment), [payload])
        study.first.draw(4)
        for step in range(4):
            assert study.first.rows[0, step]["u"].tolist() == value(0, step).tolist()


@pytest.mark.parametrize("notice", [notices.AttemptOver(simulation=0, attempt=0), notices.StopNotice(reason="enough")])
def test_the_memory_of_a_client_whose_attempt_is_over_is_let_go(
    segment: RetentionSegment, notice: notices.Notice
) -> None:
    with studied(segment) as (study, _, _):
        before = num_segments()
        with study.first.receiver.turn:
            study.first.receiver.dispatcher.apply(notice)
        assert num_segments() == before - 1


def test_memory_of_another_process_than_the_one_that_connects_is_not_read(segment: RetentionSegment) -> None:
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    try:
        # It has the same file under the same number.
        assert child.pid is not None
        with opened(replace(segment.offer, pid=child.pid)):
            pass
        with studied(segment, pid=child.pid) as (_, client, answer):
            assert answer.segment is UNSET
            client.say(data(0, 0, in_segment=True), [wire.OFFSET.pack(4096)])
            refusal = client.hear()
            assert isinstance(refusal, Refusal)
            assert refusal.reason is Reason.MALFORMED
    finally:
        child.kill()
        child.join()
        child.close()


def test_over_tcp_no_memory_is_read(segment: RetentionSegment) -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[1]) as client:
            answer = client.ask(opening(segment=segment.offer))
            assert isinstance(answer, Opened)
            assert answer.segment is UNSET
        study.first.buffer.close()


@pytest.mark.parametrize("offset", [0, NUM_BYTES - 31, 2**63])
@pytest.mark.parametrize("sequence", [0, 1])
def test_a_step_outside_of_the_segment_is_refused_and_the_connection_lives_on(
    segment: RetentionSegment, sequence: int, offset: int
) -> None:
    """The first message, and one that goes on with a series."""
    stored = segment.store([value(0, 0)])
    assert stored is not None
    with studied(segment, bytes=NUM_BYTES if offset else 16) as (study, client, _):
        if sequence:
            client.say(data(0, 0), [value(0, 0).tobytes()])
        client.say(data(sequence, sequence, in_segment=True), [wire.OFFSET.pack(offset)])
        while not isinstance(answer := client.hear(), Refusal):
            pass
        assert (answer.reason, answer.sequence) == (Reason.MALFORMED, sequence)
        assert study.first.receiver.account().refused == {"malformed": 1}


def test_what_a_client_cut_off_after_it_was_offered_is_malformed(segment: RetentionSegment) -> None:
    with studied(segment) as (_, client, _):
        os.truncate(f"/proc/self/fd/{segment.offer.descriptor}", 4096)
        client.say(data(0, 0, in_segment=True), [wire.OFFSET.pack(8192)])
        answer = client.hear()
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.MALFORMED


SENDS_AND_WAITS = """
import numpy, signal, sys
from stream_server.client_api import connect
simulation = connect(sys.argv[1])
simulation.send(0, u=numpy.arange(20000.0))
simulation._session._flush()
signal.pause()
"""


def test_a_client_that_died_left_what_it_had_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, is_heard, is_dead = ClientSegment.payload, Event(), Event()

    def read_once_it_is_dead(self: ClientSegment, message: Payload, sizes: Sequence[int]) -> Payload:
        is_heard.set()
        assert is_dead.wait(DEADLINE_S)
        return read(self, message, sizes)

    monkeypatch.setattr(ClientSegment, "payload", read_once_it_is_dead)
    shape = StudyShape(fields=(FieldSpec(name="u", shape=(20_000,)),), time_steps=TimeSteps(num=2))
    with reception(shape) as study:
        study.launch(0).write(tmp_path / "connection.json")
        argv = [sys.executable, "-c", SENDS_AND_WAITS, str(tmp_path / "connection.json")]
        with subprocess.Popen(argv) as client:
            try:
                assert is_heard.wait(DEADLINE_S)
            finally:
                client.kill()
                client.wait()
                is_dead.set()
        study.first.draw()
        assert study.first.rows[0, 0]["u"].tolist() == list(range(20_000))


def test_client_ranks_share_a_step_and_a_later_connection_takes_the_place_of_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_connection, "SEGMENT_FROM_BYTES", 1)
    monkeypatch.setattr(data_connection, "MESSAGE_BYTES", 1)
    shape = StudyShape(fields=(LARGE,), num_ranks=2, time_steps=TimeSteps(num=40), credit=8)
    sizes = (2, 1)

    def part(step: int, rank: int) -> np.ndarray:
        return np.full((sizes[rank], 5000), 10.0 * step + rank)

    with reception(shape) as study:
        study.launch(0)

        def send(rank: int) -> None:
            with study.run(0, rank=rank, num_ranks=2) as run:
                run.declare_field("u", shape=LARGE.shape, offset=(2 * rank, 0))
                for step in range(40):
                    if step == 20 + rank:
                        # A lost connection: all that is not known is sent again, from the segment.
                        assert run._session is not None
                        run._session._connections[0].dealer.is_lost = True
                    assert run.send(step, u=part(step, rank))

        crew = Crew()
        for rank in range(2):
            crew.start(send, rank)
            crew.start(study.ranks[rank].drain)
        crew.join()
        rows = {step: row["u"] for it in study.ranks for (_, step), row in it.rows.items()}
    assert len(rows) == 40
    for step, row in rows.items():
        assert np.array_equal(row, np.concatenate([part(step, 0), part(step, 1)]))


def test_neither_rank_nor_client_keeps_the_memory_of_a_simulation_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_connection, "SEGMENT_FROM_BYTES", 1)
    with reception(StudyShape(num_simulations=3)) as study:
        crew = Crew()
        crew.start(study.first.drain)
        for simulation in range(3):
            study.launch(simulation)
            with study.run(simulation) as run:
                for step in range(6):
                    run.send(step, u=value(simulation, step))
                assert num_segments() > 0
        crew.join()
        until(lambda: num_segments() == 0)


def num_segments() -> int:
    """How many this process has open, as a client or as a rank."""
    links = [Path("/proc/self/fd", descriptor) for descriptor in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link) == LINK for link in links if link.is_symlink())
