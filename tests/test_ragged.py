"""Fields whose first extent differs from step to step, from the message of a client to the batch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server import pack, pad
from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.client_api import connect
from stream_server.errors import ConfigError, UserCodeError
from stream_server.messages.client import (
    MAX_PART_BYTES,
    Ack,
    Block,
    Data,
    FieldSpec,
    Opened,
    Ping,
    Reason,
    Refusal,
    TimeSteps,
)
from stream_server.ragged import array_of, copied
from stream_server.server.intake.layout import BlockLayout, place_of
from stream_server.server.user.collate import NumpyCollate
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.storage.sample_file import SampleLayout, read_rows, write_rows
from tests.server.reception.test_receiver import data, opening, welcome
from tests.support.reception import DEADLINE_S, Crew, RawClient, Reception, StudyShape, reception
from tests.support.studies import StudyFolder

MOST = 200_000
X = FieldSpec(name="x", shape=(MOST, 3), dtype="<f8", ragged=True)
# Refusals are no acknowledgements: of the steps before them none need be in the stream yet.
SHAPE = StudyShape(fields=(X,), time_steps=TimeSteps(num=40), capacity=40, credit=8)
BLOCK = Block(field="x", dtype="<f8", shape=(MOST, 3), offset=(0, 0), count=(MOST, 3))
NARROW = Block(field="x", dtype="<f4", shape=(MOST, 3), offset=(0, 0), count=(MOST, 3))


def rows(num: int, dtype: str = "<f8") -> NDArray[np.float64]:
    return np.arange(3.0 * num, dtype=dtype).reshape(num, 3)


def drawn(study: Reception, num: int) -> dict[int, NDArray[np.float64]]:
    """The values of each of so many time steps."""
    for _ in range(num):
        study.first.draw()
    return {step: fields["x"] for (_, step), fields in study.first.rows.items()}


def refusal(client: RawClient, message: Data, payload: bytes) -> Refusal:
    """The refusal of a message; on the way others are acknowledged."""
    answer = client.ask(message, [payload])
    while not isinstance(answer, Refusal):
        answer = client.hear()
    return answer


@pytest.mark.parametrize("block", [BLOCK, NARROW], ids=["as kept", "converted"])
def test_a_step_has_the_rows_of_its_message_and_what_does_not_fit_is_refused_without_harm(block: Block) -> None:
    numbers = [5, 0, MOST // 100, 2, 7, 1]
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening(blocks=(block,))), Opened)
            sequence = 0

            def refused(payload: bytes, **changes: object) -> Reason:
                nonlocal sequence
                sequence += 1
                return refusal(client, data(sequence - 1, 30, **changes), payload).reason

            for step, num in enumerate(numbers):
                client.say(data(sequence, step), [rows(num, block.dtype).tobytes()])
                sequence += 1
                assert refused(rows(1, block.dtype).tobytes()[:-1]) is Reason.MALFORMED
                assert refused(rows(MOST + 1, block.dtype).tobytes()[:MAX_PART_BYTES]) is Reason.MALFORMED
                assert refused(rows(4, block.dtype).tobytes(), num_steps=2) is Reason.MALFORMED
                assert refused(rows(1).tobytes()[:-1], field=0, offset=0) is Reason.MALFORMED
            client.say(data(sequence, 39), [rows(3, block.dtype).tobytes()])
        found = drawn(study, len(numbers) + 1)
    assert sorted(found) == [*range(len(numbers)), 39]
    for step, num in [*enumerate(numbers), (39, 3)]:
        np.testing.assert_array_equal(found[step], rows(num))


def test_rows_in_parts_are_put_together_and_half_a_row_is_none() -> None:
    whole = rows(MOST - 1).tobytes()
    assert len(whole) > MAX_PART_BYTES
    with reception(SHAPE) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening(blocks=(BLOCK,))), Opened)
            client.say(data(0, 0, field=0, last=False), [whole[:MAX_PART_BYTES]])
            client.say(data(1, 0, field=0, offset=MAX_PART_BYTES), [whole[MAX_PART_BYTES:]])
            client.say(data(2, 1, field=0, last=False), [whole[:MAX_PART_BYTES]])
            rest = data(3, 1, field=0, offset=MAX_PART_BYTES)
            assert refusal(client, rest, whole[MAX_PART_BYTES:-8]).reason is Reason.WRONG_STEP
        found = drawn(study, 1)
    assert sorted(found) == [0]
    np.testing.assert_array_equal(found[0], rows(MOST - 1))


@pytest.mark.parametrize("block", [BLOCK, NARROW])
def test_a_step_is_whole_rows_from_none_to_the_most(block: Block) -> None:
    place = place_of(block, np.dtype("<f8"), ragged=True)
    row_bytes = 3 * np.dtype(block.dtype).itemsize
    assert [num for num in range(3 * row_bytes) if place.fits(num)] == [0, row_bytes, 2 * row_bytes]
    assert place.fits(MOST * row_bytes)
    assert not place.fits((MOST + 1) * row_bytes)


def test_each_client_rank_opens_a_block_of_the_largest_size_and_all_must_have_said_so() -> None:
    layout = BlockLayout(fields={"x": X}, num_ranks=3)
    half = Block(field="x", dtype="<f8", shape=(MOST, 3), offset=(0, 0), count=(MOST // 2, 3))
    assert "a client rank opens a block of its largest size" in str(layout.add(0, [half]))
    assert layout.add(0, [BLOCK]) is None
    assert layout.add(1, []) is None
    assert not layout.complete
    assert layout.add(2, [BLOCK]) is None
    assert (layout.complete, layout.owners) == (True, {"x": 0b101})
    nobody = BlockLayout(fields={"x": X}, num_ranks=2)
    assert nobody.add(0, []) is None
    assert "it ended without having sent a time step" in str(nobody.add(1, []))


def of_rank(rank: int, num: int) -> NDArray[np.float64]:
    return rows(num) + 1000.0 * rank


@contextmanager
def parallel(study: Reception, num_ranks: int, block: Block = BLOCK) -> Iterator[list[RawClient]]:
    """The client ranks of a simulation, each of which has said that it sends rows of x."""
    welcome(study)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(study.endpoints[0].data[0])) for _ in range(num_ranks)]
        for rank, client in enumerate(clients):
            assert isinstance(client.ask(opening(blocks=(block,), rank=rank, num_ranks=num_ranks)), Opened)
        yield clients


@pytest.mark.parametrize("block", [BLOCK, NARROW], ids=["as kept", "converted"])
def test_the_rows_of_client_ranks_come_in_the_order_of_the_ranks_whoever_is_first(block: Block) -> None:
    numbers = [(2, 0, 3), (0, 4, 1), (0, 0, 0), (1, 1, 1)]
    order = [(2, 0, 1), (1, 2, 0), (0, 1, 2), (2, 1, 0)]
    with reception(SHAPE) as study, parallel(study, 3, block) as clients:
        for step, ranks in enumerate(order):
            for rank in ranks:
                sent = of_rank(rank, numbers[step][rank]).astype(block.dtype)
                clients[rank].say(data(step, step), [sent.tobytes()])
        found = drawn(study, len(numbers))
    for step, of_ranks in enumerate(numbers):
        expected = np.concatenate([of_rank(rank, num) for rank, num in enumerate(of_ranks)])
        np.testing.assert_array_equal(found[step], expected)


def test_rows_of_client_ranks_in_parts_may_come_by_turns() -> None:
    nums = (MOST - 20_000, 3)
    first, second = (of_rank(rank, num) for rank, num in enumerate(nums))
    whole = first.tobytes()
    with reception(SHAPE) as study, parallel(study, 2) as clients:
        clients[0].say(data(0, 0, field=0, last=False), [whole[:MAX_PART_BYTES]])
        clients[1].say(data(0, 0), [second.tobytes()])
        clients[0].say(data(1, 0, field=0, offset=MAX_PART_BYTES), [whole[MAX_PART_BYTES:]])
        found = drawn(study, 1)
    np.testing.assert_array_equal(found[0], np.concatenate([first, second]))


@pytest.mark.parametrize("num_first", [1, MOST - 20_000], ids=["few", "in parts"])
def test_more_rows_than_study_json_allows_are_refused_without_harm(num_first: int) -> None:
    first, most = of_rank(0, num_first).tobytes(), rows(MOST).tobytes()
    with reception(SHAPE) as study, parallel(study, 2) as clients:
        clients[1].say(data(0, 0, field=0, last=False), [most[:MAX_PART_BYTES]])
        clients[1].say(data(1, 0, field=0, offset=MAX_PART_BYTES), [most[MAX_PART_BYTES:]])
        assert isinstance(clients[1].ask(Ping()), Ack)
        in_parts = {"field": 0, "last": False} if len(first) > MAX_PART_BYTES else {}
        refused = refusal(clients[0], data(0, 0, **in_parts), first[:MAX_PART_BYTES])
        assert refused.reason is Reason.WRONG_FIELDS
        assert f'rows of field x in a time step, and study.json allows {MOST}: raise its "max"' in refused.text


def test_a_parallel_simulation_that_moves_its_particles_between_ranks(tmp_path: Path) -> None:
    """Rank 1 has none at first, and rank 2 has a part of the energy alone; the server has two ranks."""
    energy = FieldSpec(name="e", shape=(2,), dtype="<f4")
    shape = StudyShape(fields=(X, energy), time_steps=TimeSteps(num=9), capacity=40, num_ranks=2, num_simulations=1)
    path, crew = tmp_path / "connection.json", Crew()

    def num_of(rank: int, step: int) -> int:
        return [20 - 2 * step, 2 * step, 0][rank]

    def simulate(rank: int) -> None:
        with connect(path, rank=rank, num_ranks=3, timeout_s=DEADLINE_S) as run:
            if rank == 2:
                run.declare_field("e", shape=(2,), offset=(0,))
            for step in range(9):
                fields = {"e": np.array([step, -step])} if rank == 2 else {"x": of_rank(rank, num_of(rank, step))}
                assert run.send(step, **fields)

    with reception(shape) as study:
        study.launch(0).write(path)
        for rank in range(3):
            crew.start(simulate, rank)
        for rank in study.ranks:
            crew.start(rank.drain)
        crew.join()
        found = {step: fields for rank in study.ranks for (_, step), fields in rank.rows.items()}
    assert sorted(found) == [*range(9)]
    for step, fields in found.items():
        expected = np.concatenate([of_rank(rank, num_of(rank, step)) for rank in range(3)])
        np.testing.assert_array_equal(fields["x"], expected)
        np.testing.assert_array_equal(fields["e"], [step, -step])


def test_what_a_client_rank_sent_over_a_lost_connection_comes_again() -> None:
    with reception(SHAPE) as study, parallel(study, 2) as clients:
        clients[1].say(data(0, 0), [of_rank(1, 5).tobytes()])
        with RawClient(study.endpoints[0].data[0]) as again:
            assert isinstance(again.ask(opening(blocks=(BLOCK,), rank=1, num_ranks=2)), Opened)
            again.say(data(0, 0), [of_rank(1, 2).tobytes()])
            clients[0].say(data(0, 0), [of_rank(0, 1).tobytes()])
            found = drawn(study, 1)
    np.testing.assert_array_equal(found[0], np.concatenate([of_rank(0, 1), of_rank(1, 2)]))


def test_a_simulation_that_sends_nothing_is_told_so_and_one_that_sends_less_how_much_is_missing() -> None:
    scalar = FieldSpec(name="e", shape=(2,))
    assert BlockLayout(fields={"e": scalar}, num_ranks=1).add(0, []) == "it ended without having sent a time step"
    layout = BlockLayout(fields={"e": scalar}, num_ranks=2)
    assert layout.add(0, [Block(field="e", dtype="<f8", shape=(2,), offset=(0,), count=(1,))]) is None
    assert "send 1 of the 2 values of field e" in str(layout.add(1, []))


def test_rows_in_a_file_take_no_more_bytes_than_they_have(tmp_path: Path) -> None:
    of_rows = array_of([rows(num) for num in (4, 0, 9, 1)])
    lengths = np.array([4, 0, 9, 1])
    layout = SampleLayout(num_rows=4, fields=(("x", "<f8", (9, 3)), ("e", "<f4", ())), lengths={"x": lengths})
    fields = {"x": of_rows, "e": np.arange(4, dtype=np.float32)}
    with (tmp_path / "rows").open("wb") as file:
        for _ in write_rows(file, layout, lambda name, start, stop: fields[name][start:stop]):
            pass
    assert (tmp_path / "rows").stat().st_size == 14 * 3 * 8 + 4 * 4
    [(some, values)] = read_rows(tmp_path / "rows", SampleLayout.from_plain(layout.to_plain()))
    assert some == range(4)
    for found, expected in zip(values["x"], of_rows, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values["e"], fields["e"])


def test_a_copy_shares_no_element_with_what_it_was_made_of() -> None:
    arrays = array_of([rows(1), rows(2)])
    copy = copied(arrays)
    for array in arrays:
        array += 1
    assert [it.tolist() for it in copy] == [rows(1).tolist(), rows(2).tolist()]


def test_arrays_are_packed_and_padded() -> None:
    arrays = [rows(2), rows(0), rows(3)]
    values, offsets = pack(arrays)
    np.testing.assert_array_equal(values, np.vstack(arrays))
    np.testing.assert_array_equal(offsets, [0, 2, 2, 5])
    padded, mask = pad(arrays, -1)
    np.testing.assert_array_equal(padded, [[[0, 1, 2], [3, 4, 5], [-1] * 3], [[-1] * 3] * 3, rows(3)])
    np.testing.assert_array_equal(mask, [[True, True, False], [False] * 3, [True] * 3])


def test_arrays_of_several_sizes_are_not_stacked_and_the_error_says_what_to_do() -> None:
    with pytest.raises(UserCodeError, match=r"\(2, 3\) and \(1, 3\).*process_batch.*stream_server.pack"):
        NumpyCollate()([(rows(2), 1.0), (rows(1), 2.0)])


def test_a_batch_gives_each_sample_its_own_rows() -> None:
    batch = SimulationBatch(
        simulation_ids=np.array([7, 8]),
        time_steps=np.array([0, 1]),
        parameters=np.zeros((2, 0)),
        fields={"x": array_of([rows(2), rows(1)])},
        present={"x": np.ones(2, bool)},
    )
    for sample, num in zip(batch.samples(), (2, 1), strict=True):
        np.testing.assert_array_equal(sample.fields["x"], rows(num))
        assert not sample.fields["x"].flags.writeable
    converted = NumpyCollate().convert(batch.fields["x"])
    assert [array.dtype for array in converted] == [np.float32] * 2


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([3, {"max": 5}], "later extent"),
        ([{"most": 5}, 3], "is no extent"),
        ([{"max": 0}, 3], "study.fields.x"),
    ],
)
def test_only_the_first_extent_may_differ(tmp_path: Path, shape: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        StudyFolder(tmp_path / "heat").load({"study.fields": {"x": shape}})


@pytest.mark.parametrize("per", ["step", "simulation"])
def test_a_field_that_differs_in_size_resolves_to_itself(tmp_path: Path, per: str) -> None:
    fields = {"x": {"shape": [{"max": 5}, 3], "per": per}, "u": [4]}
    config = StudyFolder(tmp_path / "heat").load({"study.fields": fields})
    field = config.study.fields["x"]
    assert (field.shape, field.ragged, field.is_static) == ((5, 3), True, per == "simulation")
    assert config.resolved()["study"]["fields"]["x"]["shape"] == [{"max": 5}, 3]
    assert type(config).model_validate(config.resolved()) == config


def test_what_was_frozen_keeps_its_lengths_when_its_slots_are_used_again() -> None:
    slots = Slots({"x": (9, 3)}, 4, ragged=["x"])
    slots.allocate({"x": "<f8"})
    buffer = Buffer(Fifo(capacity=3), slots)
    claimed = buffer.claim(3)
    for slot, num in zip(claimed, (4, 0, 9), strict=True):
        slots.set_value("x", slot, rows(num))
    buffer.enqueue(claimed)
    buffer.admit()
    frozen = buffer.freeze()
    draw = buffer.draw(3, 0)
    assert draw is not None
    assert [len(it) for it in buffer.gather(draw)["x"]] == [4, 0, 9]
    buffer.release(draw)
    assert [len(it) for it in frozen.rows("x", 0, 3)] == [4, 0, 9]
    buffer.thaw_all(frozen)
    for slot in buffer.claim(4):
        slots.set_value("x", slot, rows(2))
    np.testing.assert_array_equal(frozen.lengths["x"], [4, 0, 9])


def test_statistics_are_of_the_rows_that_are_there() -> None:
    slots = Slots({"x": (9, 3)}, 2, ragged=["x"])
    slots.allocate({"x": "<f8"})
    slots.arrays["x"][:] = np.nan
    for slot, num in enumerate((4, 1)):
        slots.set_value("x", slot, rows(num))
    np.testing.assert_array_equal(slots.rows("x", np.array([0, 1])), np.vstack([rows(4), rows(1)]))
