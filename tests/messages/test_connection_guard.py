"""Which connections a rank cuts, and which it never does."""

import math

from stream_server.machine.descriptors import OWN, STRANGERS, most_connections, verdict
from stream_server.messages.connection_guard import (
    FIRST_MESSAGE_S,
    MAX_QUESTIONS_PER_S,
    MAX_STRANGERS_BYTES,
    MAX_UNFINISHED_BYTES,
    PENALTY_S,
    SMALL_BYTES,
    ConnectionTable,
    PeerConnection,
)

DATA = "data"


def accept(table: ConnectionTable, descriptor: int, *, is_local: bool = False) -> PeerConnection:
    it = PeerConnection(
        name=DATA, descriptor=descriptor, address=("10.0.0.1", descriptor), since=0.0, is_local=is_local
    )
    table.accepted(it)
    return it


def identify(table: ConnectionTable, descriptor: int, owner: str) -> None:
    routing_id = b"%d" % descriptor
    table.identified((DATA, descriptor), routing_id, owner, num_bytes=200, turn=0, now=0.0)


def cut(table: ConnectionTable) -> list[int]:
    found = []
    for it in table.surplus():
        found.append(it.descriptor)
        table.cut(it)
    return found


def test_of_too_many_connections_the_oldest_without_a_message_go_first() -> None:
    table = ConnectionTable(3, [DATA])
    for descriptor in range(10, 15):
        accept(table, descriptor)
    identify(table, 10, "a client")
    assert cut(table) == [11, 12]
    assert table.num_connections == 3


def test_of_too_many_clients_the_one_with_most_connections_loses_its_newest() -> None:
    table = ConnectionTable(4, [DATA])
    for descriptor, owner in enumerate(["greedy", "a", "greedy", "greedy", "b"], start=10):
        accept(table, descriptor)
        identify(table, descriptor, owner)
    assert cut(table) == [13]
    accept(table, 20)
    assert cut(table) == [20], "a stranger takes no place of a client"


def test_connections_within_the_private_folder_are_not_counted_and_never_cut() -> None:
    table = ConnectionTable(1, [DATA])
    for descriptor in range(10, 20):
        accept(table, descriptor, is_local=True)
        identify(table, descriptor, "here")
    assert cut(table) == []
    assert table.to_measure() == []


def test_a_message_that_is_read_before_its_connection_is_known_tells_whose_it_is() -> None:
    table = ConnectionTable(8, [DATA])
    identify(table, 10, "a client")
    it = accept(table, 10)
    assert it.owner == "a client"
    assert table.routed[DATA][b"10"] is it


def test_the_newest_message_tells_whose_a_descriptor_is_that_was_used_before() -> None:
    table = ConnectionTable(8, [DATA])
    accept(table, 10)
    identify(table, 10, "earlier")
    table.closed((DATA, 10))
    identify(table, 10, "earlier")
    it = accept(table, 10)
    table.identified((DATA, 10), b"new", "later", num_bytes=0, turn=0, now=0.0)
    assert it.owner == "later"
    assert table.routed[DATA] == {b"new": it}


def test_a_connection_that_was_cut_or_closed_leaves_nothing() -> None:
    table = ConnectionTable(8, [DATA])
    table.cut(accept(table, 10))
    identify(table, 10, "late words")
    accept(table, 11)
    identify(table, 11, "a client")
    for descriptor in (10, 11):
        table.closed((DATA, descriptor))
    assert table.num_connections == 0
    assert table.routed == {DATA: {}}


def test_strangers_together_may_send_no_more_than_a_few_first_messages_take() -> None:
    table = ConnectionTable(100, [DATA])
    size = 4 * 2**20
    first, *others = [accept(table, descriptor) for descriptor in range(10, 10 + MAX_STRANGERS_BYTES // size)]
    small = accept(table, 50)
    for it in (first, *others):
        assert table.offence(it, size, was_heard=False, turn=0, now=1.0) == "", "ZeroMQ has connected again"
    assert table.offence(small, SMALL_BYTES, was_heard=False, turn=0, now=1.0) == "", "an honest one among them"
    assert "bytes before a first message" in table.offence(first, size, was_heard=False, turn=0, now=1.0)
    table.cut(first)
    assert table.offence(others[0], size, was_heard=False, turn=0, now=1.0) == ""
    table.closed((DATA, others[0].descriptor))
    assert table.num_left == 2 * size, "what the allocator may keep for the next ones"


def test_a_first_message_has_an_end_as_any_other() -> None:
    table = ConnectionTable(8, [DATA])
    it = accept(table, 10)
    huge = MAX_UNFINISHED_BYTES + 1
    assert table.offence(it, huge, was_heard=False, turn=2, now=1.0) == ""
    assert "of one message" in table.offence(it, huge, was_heard=False, turn=4, now=1.1)


def test_who_says_nothing_is_cut_unless_the_receiver_has_not_read_meanwhile() -> None:
    table = ConnectionTable(8, [DATA])
    it = accept(table, 10)
    assert table.offence(it, 100, was_heard=False, turn=5, now=FIRST_MESSAGE_S - 1) == ""
    assert table.offence(it, 100, was_heard=False, turn=6, now=FIRST_MESSAGE_S + 1) == ""
    assert "no message" in table.offence(it, 100, was_heard=False, turn=7, now=FIRST_MESSAGE_S + 1)


def test_a_message_without_an_end_is_cut_once_the_receiver_has_read_all_that_is_whole() -> None:
    table = ConnectionTable(8, [DATA])
    it = accept(table, 10)
    identify(table, 10, "a client")
    huge = 200 + MAX_UNFINISHED_BYTES + 1
    assert table.offence(it, huge, was_heard=False, turn=0, now=1.0) == ""
    assert table.offence(it, huge, was_heard=False, turn=2, now=1.1) == ""
    assert table.offence(it, huge, was_heard=False, turn=3, now=1.2) == "", "that may have come after it looked"
    assert "of one message" in table.offence(it, huge, was_heard=False, turn=4, now=1.3)


def test_who_may_send_a_message_of_any_size_is_not_cut_for_it() -> None:
    table = ConnectionTable(8, [DATA], max_unfinished=math.inf)
    it = accept(table, 10)
    identify(table, 10, "rank 0")
    for turn in range(5):
        assert table.offence(it, turn * 2**30, was_heard=False, turn=2 * turn, now=turn / 10) == ""


def test_a_client_that_is_heard_may_send_as_much_as_it_likes() -> None:
    table = ConnectionTable(8, [DATA])
    it = accept(table, 10)
    identify(table, 10, "a client")
    for turn in range(100):
        num_bytes = turn * 2 * MAX_UNFINISHED_BYTES
        assert table.offence(it, num_bytes, was_heard=True, turn=2 * turn, now=turn / 10) == ""


def test_a_flood_of_questions_is_cut_and_so_are_further_connections_of_its_owner_for_a_while() -> None:
    table = ConnectionTable(8, [DATA])
    for descriptor, owner in ((10, "flooder"), (11, "a client")):
        accept(table, descriptor)
        identify(table, descriptor, owner)
    patient, flooder = table.clients[DATA, 11], table.clients[DATA, 10]
    patient.num_questions = MAX_QUESTIONS_PER_S
    flooder.num_questions = MAX_QUESTIONS_PER_S + 1
    assert table.offence(patient, 300, was_heard=True, turn=2, now=1.0) == ""
    assert "flood" in table.offence(flooder, 300, was_heard=True, turn=2, now=1.0)
    table.cut(flooder)
    accept(table, 12)
    identify(table, 12, "flooder")
    assert [it.descriptor for it in table.penalized(1.0 + PENALTY_S / 2)] == [12]
    assert table.penalized(1.0 + PENALTY_S) == []


def test_a_rank_has_descriptors_for_its_clients_and_for_strangers_and_some_to_spare() -> None:
    assert verdict(100, None) == "fits"
    assert verdict(100, 100 + OWN + STRANGERS).startswith("fits; with ")
    assert verdict(100, 100 + OWN + STRANGERS - 1) == (
        "does NOT fit, 228 are needed: have it raised, or let fewer simulations run at once"
    )
    assert most_connections(10) <= 2 * 10 + STRANGERS
