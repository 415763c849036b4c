"""Attempts at the intake: notices and messages in, slots and refusals out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stream_server.messages.client import (
    MAX_PART_BYTES,
    MAX_UNKNOWN_STEPS,
    Block,
    End,
    FieldSpec,
    Reason,
    Refusal,
    Routing,
)
from stream_server.messages.routing import Dealing
from stream_server.server.intake.attempts import Connection
from stream_server.server.intake.layout import BlockLayout
from tests.fakes.intakes import OPTIONAL, ClientIntake, U, answer_to, block, data, make, opened, opening, send
from tests.support.examples import examples


def halves(intake: ClientIntake, attempt: int = 0) -> list[Connection]:
    """The connections of a simulation of two ranks."""
    intake.begin_attempt(0, attempt)
    return [
        opened(intake, opening(block(start=2 * rank, num=2), attempt=attempt, rank=rank, num_ranks=2))
        for rank in range(2)
    ]


def test_a_step_is_acknowledged_only_when_it_is_in_the_stream() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    assert send(intake, client, data(client, 0, num_steps=2)) == 2
    assert client.ack().received == 0
    intake.settlement.in_stream(1)
    assert client.ack().received == 0
    intake.settlement.in_stream(1)
    assert list(intake.settlement.touched.values()) == [client]
    assert client.ack().received == 1


def test_a_step_of_several_client_ranks_is_whole_when_all_have_sent_their_part() -> None:
    intake = make()
    one, other = halves(intake)
    assert send(intake, one, data(one, 0)) == 0
    assert send(intake, other, data(other, 0)) == 1
    intake.settlement.in_stream(1)
    assert set(intake.settlement.touched.values()) == {one, other}
    assert (one.ack().received, other.ack().received) == (1, 1)


def test_a_known_step_is_dropped_counted_and_acknowledged() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0))
    intake.settlement.in_stream(1)
    assert send(intake, client, data(client, 0)) == 0
    assert intake.state.ledger.duplicates == 1
    assert client.ack().received == 2
    assert send(intake, client, data(client, 0, num_steps=3)) == 2
    assert intake.state.ledger.duplicates == 2
    assert [share.repeated for share in intake.changes()] == [2]


def test_a_higher_attempt_discards_half_assembled_steps_and_fences_the_older_one() -> None:
    intake = make()
    one, other = halves(intake)
    send(intake, one, data(one, 0))
    send(intake, one, data(one, 1))
    send(intake, other, data(other, 0))
    new_one, new_other = halves(intake, attempt=1)
    assert len(intake.settlement.freed) == 1
    late = send(intake, other, data(other, 1))
    assert isinstance(late, Refusal)
    assert late.reason is Reason.STALE_ATTEMPT
    assert new_one.attempt.packed_known().hex() == "01"
    assert send(intake, new_one, data(new_one, 1)) == 0
    assert send(intake, new_other, data(new_other, 1)) == 1


def test_steps_that_a_new_attempt_need_not_repeat_count_as_duplicates_at_its_end() -> None:
    intake = make(num=2)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0))
    intake.begin_attempt(0, 1)
    client = opened(intake, opening(block(), attempt=1))
    send(intake, client, data(client, 1))
    assert intake.assembly.finish(client, End(simulation=0, attempt=1, incarnation=0, share=2, total=2)) is None
    assert intake.state.ledger.duplicates == 1
    assert [share.repeated for share in intake.changes()] == [0]
    assert client.ack().ended


def test_the_share_of_a_known_number_of_steps_is_settled_without_an_end() -> None:
    intake = make(num=2)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0, num_steps=2))
    (share,) = intake.changes()
    assert (share.complete, share.accepted, share.total) == (True, 2, 2)


def test_a_complete_share_is_told_at_once_and_the_others_are_still_to_come() -> None:
    intake = make(num=2)
    for simulation, num in ((0, 1), (1, 2)):
        intake.begin_attempt(simulation, 0)
        client = opened(intake, opening(block(), simulation=simulation))
        send(intake, client, data(client, 0, num_steps=num))
    assert [(share.simulation, share.complete) for share in intake.changes(only_complete=True)] == [(1, True)]
    assert intake.changes(only_complete=True) == []
    assert [(share.simulation, share.complete) for share in intake.changes()] == [(0, False)]


def test_of_an_unknown_number_of_steps_every_client_rank_must_say_the_end() -> None:
    intake = make(num=None)
    one, other = halves(intake)
    for client in (one, other):
        send(intake, client, data(client, 0))
    end = End(simulation=0, attempt=0, incarnation=0, share=1, total=1)
    intake.assembly.finish(one, end)
    assert not intake.changes()[0].complete
    intake.flush()
    intake.assembly.finish(other, end)
    assert intake.changes()[0].complete
    assert set(intake.flush().values()) == {one, other}
    assert (one.ack().ended, other.ack().ended) == (True, True)


def test_a_rank_without_a_share_is_done_from_the_beginning() -> None:
    intake = make(num=None, dealing=Dealing(Routing.SIMULATIONS, 2))
    intake.begin_attempt(1, 0)
    assert intake.changes()[0].complete
    intake.begin_attempt(2, 0)
    assert intake.changes() == []


def test_a_simulation_may_end_before_its_last_time_step() -> None:
    intake = make(num=8)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 0, num_steps=3))
    assert intake.assembly.finish(client, End(simulation=0, attempt=0, incarnation=0, share=3, total=3)) is None
    (share,) = intake.changes()
    assert (share.complete, share.accepted, share.total) == (True, 3, 3)


def test_a_simulation_cannot_have_sent_more_time_steps_than_there_are() -> None:
    intake = make(num=8, dealing=Dealing(Routing.STEPS, 2))
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    for share, total in ((4, 9), (5, 8)):
        refusal = intake.assembly.finish(client, End(simulation=0, attempt=0, incarnation=0, share=share, total=total))
        assert refusal is not None
        assert refusal.reason is Reason.WRONG_STEP


def test_the_window_counts_steps_that_wait_for_other_client_ranks_or_for_room() -> None:
    intake = make(credit=2)
    one, other = halves(intake)
    for index in range(2):
        send(intake, one, data(one, index))
    refusal = send(intake, one, data(one, 2))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BEYOND_CREDIT
    send(intake, other, data(other, 0))
    refusal = send(intake, one, data(one, 3))
    assert isinstance(refusal, Refusal)
    intake.settlement.in_stream(1)
    assert send(intake, one, data(one, 4)) == 0


def test_a_simulation_waits_outside_while_there_is_no_room_for_its_window() -> None:
    intake = make(credit=4, credit_slots=5)
    for simulation in range(2):
        intake.begin_attempt(simulation, 0)
    client = opened(intake, opening(block()))
    assert answer_to(intake, b"x", opening(block(), simulation=1)) is None
    assert {share.simulation: share.blocked for share in intake.changes()}[1]
    send(intake, client, data(client, 0, num_steps=3))
    intake.end_attempt(0, 0)
    intake.dispatcher.end_turn()
    assert b"x" not in intake.dispatcher.connections
    intake.settlement.in_stream(2)
    intake.dispatcher.end_turn()
    assert b"x" in intake.dispatcher.connections


def test_a_client_rank_without_blocks_completes_what_waited_for_it() -> None:
    intake, absent = make(fields=[U, OPTIONAL], nonfinite="keep"), list[str]()
    intake.slots.leave_out = lambda name, slots: absent.append(name)
    intake.begin_attempt(0, 0)
    one = opened(intake, opening(block(), num_ranks=2))
    assert send(intake, one, data(one, 0)) == 0
    opened(intake, opening(rank=1, num_ranks=2))
    assert intake.num_received == 1
    assert absent == ["v"]


def test_an_optional_field_must_come_from_all_of_its_client_ranks_or_none() -> None:
    intake = make(fields=[U, OPTIONAL])
    intake.begin_attempt(0, 0)
    one, other = (
        opened(intake, opening(block("u", 2 * r, 2), block("v", 2 * r, 2), rank=r, num_ranks=2)) for r in range(2)
    )
    send(intake, one, data(one, 0, present=1))
    assert send(intake, other, data(other, 0, present=1)) == 1
    send(intake, one, data(one, 1, present=1))
    refusal = send(intake, other, data(other, 1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.WRONG_FIELDS


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (
            [block(num=3), block(start=2, num=2)],
            "field u of client rank 1, (2,) at (2,), overlaps with that of client rank 0, (3,) at (0,)",
        ),
        ([block(num=2), block(start=3, num=1)], "3 of the 4"),
    ],
)
def test_the_blocks_of_the_client_ranks_must_cover_a_field_exactly(blocks: list[Block], words: str) -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    opened(intake, opening(blocks[0], num_ranks=2))
    refusal = answer_to(intake, b"x", opening(blocks[1], rank=1, num_ranks=2))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.WRONG_BLOCKS
    assert words in refusal.text


def test_blocks_of_more_dimensions_may_touch_and_not_overlap() -> None:
    layout = BlockLayout(fields={"w": FieldSpec(name="w", shape=(4, 4))}, num_ranks=5)
    corners = [(0, 0), (0, 2), (2, 0), (2, 2)]
    for rank, corner in enumerate(corners):
        assert layout.add(rank, [Block(field="w", dtype="<f8", shape=(4, 4), offset=corner, count=(2, 2))]) is None
    problem = layout.add(4, [Block(field="w", dtype="<f8", shape=(4, 4), offset=(3, 1), count=(1, 1))])
    assert problem is not None
    assert "overlaps with that of client rank 2" in problem


@pytest.mark.parametrize(("shape", "most"), [({"client_ranks": 2}, 2), ({}, 1024)], ids=["said", "unsaid"])
def test_a_simulation_has_no_more_client_ranks_than_the_study_starts(shape: dict[str, int], most: int) -> None:
    intake = make(**shape)
    intake.begin_attempt(0, 0)
    refusal = answer_to(intake, b"x", opening(block(num=1), num_ranks=most + 1))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.text) == (
        Reason.WRONG_BLOCKS,
        f"client rank 0 says {most + 1} ranks, and at most {most} are expected: simulation.ranks says how many a "
        "simulation has",
    )
    opened(intake, opening(block(num=2), num_ranks=most))


def test_a_step_waits_for_all_client_ranks_also_if_one_says_that_it_sends_all() -> None:
    intake = make()
    intake.begin_attempt(0, 0)
    first = opened(intake, opening(block(), num_ranks=2))
    assert send(intake, first, data(first, 0)) == 0
    refusal = answer_to(intake, b"x", opening(block(), rank=1, num_ranks=2))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.WRONG_BLOCKS
    assert intake.account().intake[0].accepted == 0


def test_a_refused_message_leaves_no_slot_behind() -> None:
    intake = make(fields=[U, OPTIONAL])
    intake.begin_attempt(0, 0)
    first = opened(intake, opening(block("u", 0, 2), block("v", 0, 2), rank=0, num_ranks=2))
    second = opened(intake, opening(block("u", 2, 2), block("v", 2, 2), rank=1, num_ranks=2))
    send(intake, first, data(first, 0))
    send(intake, first, data(first, 1, present=1))
    assert isinstance(send(intake, second, data(second, 0, num_steps=2)), Refusal)
    intake.end_attempt(0, 0)
    assert sorted(intake.settlement.freed) == [0, 1]


def test_the_progress_clock_runs_while_the_types_of_fields_are_not_known() -> None:
    intake = make(fields=[FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(4,))])
    intake.begin_attempt(0, 0)
    assert answer_to(intake, b"p", opening(block("u"), rank=0, num_ranks=2)) is None
    assert not intake.changes()[-1].blocked


def test_parts_of_a_step_must_come_in_order_and_all() -> None:
    big = FieldSpec(name="u", shape=(3 * MAX_PART_BYTES // 8,), dtype="<f8")
    intake = make(fields=[big])
    intake.begin_attempt(0, 0)
    whole = Block(field="u", dtype="<f8", shape=big.shape, offset=(0,), count=big.shape)
    client = opened(intake, opening(whole))
    assert send(intake, client, data(client, 0, field=0, last=False)) == 0
    gap = send(intake, client, data(client, 0, field=0, offset=2 * MAX_PART_BYTES))
    assert isinstance(gap, Refusal)
    assert gap.reason is Reason.WRONG_STEP
    send(intake, client, data(client, 0, field=0, offset=MAX_PART_BYTES, last=False))
    assert send(intake, client, data(client, 0, field=0, offset=2 * MAX_PART_BYTES)) == 1
    intake.settlement.in_stream(1)
    assert client.ack().received == client.next_sequence


def test_a_client_rank_may_send_its_parts_of_a_step_again_before_those_of_others_have_come() -> None:
    big = FieldSpec(name="u", shape=(2, 2 * MAX_PART_BYTES // 8), dtype="<f8")
    intake = make(fields=[big])
    intake.begin_attempt(0, 0)
    count = (1, *big.shape[1:])
    rows = [Block(field="u", dtype="<f8", shape=big.shape, offset=(row, 0), count=count) for row in range(2)]
    first, second = [opened(intake, opening(rows[rank], rank=rank, num_ranks=2)) for rank in range(2)]

    def send_all(client: Connection) -> int | Refusal:
        assert send(intake, client, data(client, 0, field=0, last=False)) == 0
        return send(intake, client, data(client, 0, field=0, offset=MAX_PART_BYTES))

    assert [send_all(it) for it in (first, first, second, second)] == [0, 0, 1, 0]
    intake.settlement.in_stream(1)
    assert [it.ack().received for it in (first, second)] == [4, 4]


def test_a_client_rank_that_connects_again_keeps_the_parts_of_the_others() -> None:
    big = FieldSpec(name="u", shape=(2, 2 * MAX_PART_BYTES // 8), dtype="<f8")
    intake = make(fields=[big])
    intake.begin_attempt(0, 0)
    count = (1, *big.shape[1:])
    rows = [Block(field="u", dtype="<f8", shape=big.shape, offset=(row, 0), count=count) for row in range(2)]
    first, second = [opened(intake, opening(rows[rank], rank=rank, num_ranks=2)) for rank in range(2)]
    for client in (first, second):
        assert send(intake, client, data(client, 0, field=0, last=False)) == 0
    intake.assembly.lose(first)
    first = opened(intake, opening(rows[0], rank=0, num_ranks=2))
    gap = send(intake, first, data(first, 0, field=0, offset=MAX_PART_BYTES))
    assert isinstance(gap, Refusal)
    assert gap.reason is Reason.WRONG_STEP
    assert send(intake, first, data(first, 0, field=0, last=False)) == 0
    assert send(intake, first, data(first, 0, field=0, offset=MAX_PART_BYTES)) == 0
    assert send(intake, second, data(second, 0, field=0, offset=MAX_PART_BYTES)) == 1


def test_steps_are_bounded_when_their_number_is_unknown() -> None:
    intake = make(num=None)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    refusal = send(intake, client, data(client, MAX_UNKNOWN_STEPS))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.WRONG_STEP


@settings(max_examples=examples(60))
@given(
    st.data(),
    st.integers(1, 3),
    st.integers(2, 5),
    st.integers(1, 4),
)
def test_clients_that_keep_to_their_window_are_never_refused_and_always_done(
    choices: st.DataObject, num_clients: int, credit: int, capacity: int
) -> None:
    num, total = 4 // num_clients, 12
    intake = make(num=total, credit=credit, credit_slots=credit)
    intake.begin_attempt(0, 0)
    sizes = [num] * (num_clients - 1) + [4 - num * (num_clients - 1)]
    clients = [
        opened(intake, opening(block(start=num * rank, num=size), rank=rank, num_ranks=num_clients))
        for rank, size in enumerate(sizes)
    ]
    sent = [0] * num_clients
    on_the_way: list[list[tuple[int, int]]] = [[] for _ in clients]
    committed = population = 0
    while any(s < total for s in sent) or committed or population:
        able = []
        for rank, client in enumerate(clients):
            on_the_way[rank] = [(end, k) for end, k in on_the_way[rank] if end > client.ack().received]
            room = min(credit - sum(k for _, k in on_the_way[rank]), total - sent[rank])
            if room:
                able.append((rank, room))
        moves = [("send", rank, room) for rank, room in able]
        moves += [("admit", 0, 0)] * (committed > 0 and population < capacity) + [("draw", 0, 0)] * (population > 0)
        assert moves, "nobody can move: a deadlock"
        move, rank, room = choices.draw(st.sampled_from(moves))
        if move == "send":
            k = choices.draw(st.integers(1, min(room, max(1, credit // 2))))
            done = send(intake, clients[rank], data(clients[rank], sent[rank], num_steps=k))
            assert isinstance(done, int), done
            committed += done
            sent[rank] += k
            on_the_way[rank].append((clients[rank].next_sequence, k))
        elif move == "admit":
            intake.settlement.in_stream(1)
            committed, population = committed - 1, population + 1
        else:
            population -= 1
        assert intake.num_under_way <= credit
    assert intake.changes()[0].complete


def test_a_series_does_not_go_on_into_a_step_that_is_known() -> None:
    intake = make(num=8, credit=4)
    intake.begin_attempt(0, 0)
    client = opened(intake, opening(block()))
    send(intake, client, data(client, 2))
    assert [intake.assembly.credit_from(client, index) > 0 for index in range(5)] == [False, False, False, True, True]


def test_the_news_of_a_simulation_are_those_of_its_current_attempt() -> None:
    """A client of an older attempt may say its end in the very turn in which the newer one sends the last step."""
    intake = make(num=None)
    intake.begin_attempt(0, 0)
    old = opened(intake, opening(block()))
    intake.begin_attempt(0, 1)
    client = opened(intake, opening(block(), attempt=1))
    send(intake, client, data(client, 0))
    end = End(simulation=0, attempt=1, incarnation=0, share=1, total=1)
    assert intake.assembly.finish(client, end) is None
    assert intake.assembly.finish(old, replace(end, attempt=0, share=9)) is None
    assert [(share.attempt, share.complete) for share in intake.changes(only_complete=True)] == [(1, True)]
