"""What another attempt sends is compared with what an earlier one sent, and no window is made of both."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stream_server.buffers import Buffer, Fifo, Reservoir, Slots, WindowBuffer, WindowShape
from stream_server.messages import wire
from stream_server.messages.client import Block, FieldSpec, Open
from stream_server.server.intake.attempts import Connection
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import Recording
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder
from tests.fakes.intakes import ClientIntake, block, data, make, opened, opening
from tests.support.intake_ranks import Frames
from tests.support.studies import StudyFolder

NUM = 8


def with_windows(capacity: int = 100, length: int = 2) -> WindowBuffer:
    slots = Slots({"u": (4,)}, 200)
    return WindowBuffer(Fifo(capacity=capacity), slots, shape=WindowShape(length=length, num_steps=NUM), most_kept=90)


def send(intake: ClientIntake, client: Connection, steps: Sequence[int], values: npt.ArrayLike) -> None:
    for step in steps:
        message = data(client, step)
        row = np.full(4, step) + np.asarray(values)
        [start] = client.opening.blocks[0].offset
        [header, *frames] = wire.encode(message, [row[start : start + client.opening.blocks[0].count[0]]])
        assert intake.assembly.take(client, message, bytes(header), Frames(frames)) is None
        intake.dispatcher.end_turn()


def begin(intake: ClientIntake, attempt: int, *openings: Open) -> list[Connection]:
    intake.begin_attempt(0, attempt)
    return [opened(intake, it) for it in openings or (opening(block(), attempt=attempt),)]


def known(intake: ClientIntake, client: Connection) -> list[int]:
    bits = np.unpackbits(np.frombuffer(client.attempt.packed_known(), np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def windows(buffer: Buffer) -> list[list[float]]:
    """The values of the steps of each window, in its order."""
    return buffer.contents().fields["u"][:, :, 0].tolist()


def test_no_window_is_made_of_two_trajectories() -> None:
    intake = make(num=NUM, buffer=with_windows(), credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(4), 0.0)
    [client] = begin(intake, 1)
    assert known(intake, client) == [0, 1, 2]
    send(intake, client, range(3, NUM), 0.5)
    assert windows(intake.settlement.buffer) == [[0, 1], [1, 2], [2, 3], [4.5, 5.5], [5.5, 6.5], [6.5, 7.5]]
    [share] = intake.changes()
    assert share.differs == "time step 3: u[0] is 3.5, and was 3.0"
    assert (share.repeated, share.complete, share.accepted) == (0, True, NUM)
    received = intake.account().intake[0].windows
    assert received is not None
    assert (received.made, received.late) == (6, 1)


def test_the_record_says_where_the_trajectory_of_an_attempt_ends(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path / "heat").load({"study.time_steps": NUM, "study.fields": {"u": {"shape": [4]}}})
    intake = make(num=NUM, buffer=with_windows(), credit_slots=90)
    recorder = Recorder(
        config.output_dir / "record",
        RecordedStudy.of(config, ("left",), 1),
        rank=0,
        incarnation=1,
        position=0,
        rows=intake.settlement.buffer.slots,
        parameters_of=np.array,
    )
    with recorder:
        intake.settlement.recorder = recorder
        for attempt, steps in enumerate((range(4), range(3, NUM))):
            [client] = begin(intake, attempt)
            send(intake, client, steps, 0.5 * attempt)
    with closing(Recording(recorder.folder)) as recording:
        [of_rank] = recording.ranks
        entries = [of_rank.read(number) for number in range(len(of_rank))]
    ends = [(it.simulation, it.time_step) for it in entries if it.kind is EntryKind.TRAJECTORY_END]
    assert ends == [(0, 3)]


def test_a_window_of_two_attempts_on_one_trajectory_is_made() -> None:
    intake = make(num=NUM, buffer=with_windows(length=3), credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(4), [0.0, 0.0, 0.0, np.pi])
    [client] = begin(intake, 1)
    assert known(intake, client) == [0, 1]
    send(intake, client, range(2, NUM), [0.0, 0.0, 0.0, np.pi])
    assert windows(intake.settlement.buffer) == [[i, i + 1, i + 2] for i in range(NUM - 2)]
    [share] = intake.changes()
    assert (share.differs, share.repeated, share.received) == ("", 0, 6)
    assert intake.state.ledger.duplicates == 2


def test_an_attempt_that_goes_on_behind_the_steps_of_an_earlier_one_has_nothing_to_compare() -> None:
    intake = make(num=NUM, buffer=with_windows(), credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(4), 0.0)
    [client] = begin(intake, 1)
    send(intake, client, range(4, NUM), 0.0)
    assert windows(intake.settlement.buffer) == [[i, i + 1] for i in range(NUM - 1)]
    [share] = intake.changes()
    assert (share.differs, share.complete) == ("", True)


def test_steps_that_wait_for_room_make_no_window_with_those_of_another_trajectory() -> None:
    buffer = with_windows(capacity=2)
    intake = make(num=NUM, credit=8, buffer=buffer, credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(6), 0.0)
    assert buffer.num_waiting
    intake.begin_attempt(0, 1)
    made: list[list[float]] = []

    def train() -> None:
        while (draw := buffer.draw(1, 0.0)) is not None:
            made.extend(buffer.gather(draw)["u"][:, :, 0].tolist())
            buffer.release(draw)
            intake.dispatcher.end_turn()

    message = opening(block(), attempt=1)
    client = opened(intake, message)
    assert 5 not in known(intake, client)
    for step in range(NUM):
        if step not in known(intake, client):
            send(intake, client, [step], 0.5)
    train()
    assert made == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [6.5, 7.5]]


def test_the_parts_of_all_client_ranks_are_compared() -> None:
    intake = make(num=NUM, buffer=with_windows(), credit_slots=90)
    for attempt in range(2):
        parts = [block(start=2 * rank, num=2) for rank in range(2)]
        ranks = begin(
            intake,
            attempt,
            *(opening(parts[rank], attempt=attempt, rank=rank, num_ranks=2) for rank in range(2)),
        )
        for step in range(3) if not attempt else (2, 3):
            for client in ranks:
                send(intake, client, [step], [0.0, 0.0, 0.0, 0.5 * attempt])
    assert windows(intake.settlement.buffer) == [[0, 1], [1, 2]]
    assert [share.differs for share in intake.changes()] == ["time step 2: u[3] is 2.5, and was 2.0"]


@pytest.mark.parametrize("moved", [0.0, 0.5])
@pytest.mark.parametrize("policy", [Fifo(capacity=100), Reservoir(capacity=100, watermark=1, seed=1)])
def test_the_last_step_that_is_in_memory_tells_that_samples_are_of_two_trajectories(
    policy: Fifo | Reservoir, moved: float
) -> None:
    intake = make(num=NUM, buffer=Buffer(policy, Slots({"u": (4,)}, 200)), credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(4), 0.0)
    [client] = begin(intake, 1)
    assert known(intake, client) == [0, 1, 2]
    send(intake, client, [3, 4], moved)
    assert [bool(share.differs) for share in intake.changes()] == [bool(moved)]
    assert intake.state.ledger.duplicates == 1


def test_a_step_that_is_trained_while_it_is_on_its_way_again_is_dropped() -> None:
    buffer = Buffer(Fifo(capacity=100), Slots({"u": (4,)}, 200))
    intake = make(num=NUM, buffer=buffer, credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, [0], 0.0)
    [client] = begin(intake, 1)
    draw = buffer.draw(1, 0.0)
    assert draw is not None
    buffer.release(draw)
    send(intake, client, [0, 1], 0.5)
    [share] = intake.changes()
    assert (share.differs, share.accepted, share.repeated) == ("", 2, 0)


@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_a_held_out_simulation_of_two_trajectories_is_noticed(moved: float) -> None:
    store = ValidationStore(1)
    intake = make(num=NUM, buffer=with_windows(), validation=store, credit_slots=90)
    [client] = begin(intake, 0)
    send(intake, client, range(4), 0.0)
    [client] = begin(intake, 1)
    assert known(intake, client) == [0, 1, 2]
    send(intake, client, range(3, NUM), moved)
    assert [bool(share.differs) for share in intake.changes()] == [bool(moved)]
    assert len(store.freeze()) == NUM


@pytest.mark.parametrize("num_rows", [2, 3])
def test_another_number_of_rows_is_another_trajectory(num_rows: int) -> None:
    ragged = FieldSpec(name="x", shape=(5, 3), dtype="<f8", ragged=True)
    rows = Block(field="x", dtype="<f4", shape=ragged.shape, offset=(0, 0), count=ragged.shape)
    buffer = Buffer(Fifo(capacity=100), Slots({"x": ragged.shape}, 200, ragged=["x"]))
    intake = make(num=NUM, fields=[ragged], buffer=buffer, credit_slots=90)

    def send_rows(client: Connection, step: int, num: int) -> None:
        message = data(client, step)
        [header, *frames] = wire.encode(message, [np.full((num, 3), step, np.float32)])
        assert intake.assembly.take(client, message, bytes(header), Frames(frames)) is None
        intake.dispatcher.end_turn()

    [client] = begin(intake, 0, opening(rows))
    send_rows(client, 0, 4)
    send_rows(client, 1, 3)
    assert [it.tolist() for it in buffer.contents().fields["x"]] == [[[0.0] * 3] * 4, [[1.0] * 3] * 3]
    [client] = begin(intake, 1, opening(rows, attempt=1))
    send_rows(client, 1, num_rows)
    [share] = intake.changes()
    assert share.differs == ("" if num_rows == 3 else "time step 1: field x has the shape (2, 3), and had (3, 3)")
