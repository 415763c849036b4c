"""A simulation and a server, end to end over sockets, in each language."""

import threading

import msgspec
import numpy as np
import pytest

from stream_server.messages.client import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    Data,
    End,
    FieldSpec,
    Open,
    Reason,
    Refusal,
    Routing,
    Stop,
)
from tests.client_api.clients import RELEASE_S, SMALL, Client, assert_has, messages, num_pings
from tests.fakes.server import FakeServer
from tests.native.conformance.values import values


@pytest.mark.parametrize("transport", ["ipc", "tcp", "curve"])
@pytest.mark.parametrize("routing", Routing)
def test_every_step_arrives_at_its_rank(client: Client, transport: str, routing: Routing) -> None:
    with FakeServer(SMALL, num_ranks=3, transport=transport) as server:
        server.routing = routing
        assert client.connect(server) == "ok"
        assert set(client.send(*range(50))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 50)
        data = messages(server, Data)
    assert {it.checksum is not None for it in data} == {transport == "tcp"}
    assert {it.field for it in data} == {ALL_FIELDS}


def test_a_step_above_the_largest_part_travels_in_parts_between_gathered_ones(client: Client) -> None:
    shape = (3, MAX_PART_BYTES // 16)
    fields = (FieldSpec(name="u", shape=shape, optional=True), FieldSpec(name="v", shape=(5,)))
    with FakeServer(fields, num_ranks=1, transport="tcp") as server:
        client.connect(server)
        for step in range(4):
            if step != 1:
                client.ask(f"put u float64 {shape[0]},{shape[1]} {step}")
            client.ask(f"put v float64 5 {step}")
            assert client.ask(f"send {step}") == "ok"
        assert client.ask("finish") == "ok"
        for step in range(4):
            assert np.array_equal(server.steps[7, step]["v"], values("float64", (5,), step))
            if step != 1:
                assert np.array_equal(server.steps[7, step]["u"], values("float64", shape, step))
    assert "u" not in server.steps[7, 1]
    parts = [(it.field, it.offset, it.last) for it in messages(server, Data) if it.index == 2]
    assert parts == [(0, 0, False), (0, MAX_PART_BYTES, False), (1, 0, True)]


def test_quick_small_steps_travel_together(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 1000
        client.connect(server)
        assert set(client.send(*range(1000))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 1000)
        data = messages(server, Data)
    assert sum(it.num_steps for it in data) == 1000
    assert len(data) < 400


def test_steps_that_travel_together_give_back_their_credit(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 16
        client.connect(server)
        assert set(client.send(*range(500))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 500)
        assert len(messages(server, Data)) < 300


def test_any_number_of_messages_waits_for_a_server_that_is_busy(client: Client) -> None:
    fields = (FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(), optional=True))
    free = threading.Event()
    with FakeServer(fields, num_ranks=1) as server:
        server.credit = 10_000
        client.connect(server)
        assert client.send(0) == ["ok"]
        server.do(lambda: free.wait(100))
        # Each step is a message of its own, since its neighbours have other fields.
        for step in range(1, 3000):
            if step % 2:
                client.ask(f"put v float64 . {step}")
            assert client.send(step) == ["ok"]
        free.set()
        assert client.ask("finish") == "ok"
        assert len(server.steps) == 3000


def test_memory_that_is_used_again_holds_what_is_sent_now(client: Client) -> None:
    # Rows that begin anywhere in a cache line; 12 MB in all, of which 6 MB are kept.
    size = 5001
    with FakeServer((FieldSpec(name="u", shape=(size,)),), num_ranks=1) as server:
        server.window_bytes = 6_000_000
        client.connect(server)
        assert set(client.send(*range(300), count=str(size))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert len(server.steps) == 300
        assert all(np.array_equal(server.steps[7, step]["u"], values("float64", (size,), step)) for step in range(300))


def test_only_steps_with_the_same_fields_travel_together(client: Client) -> None:
    fields = (FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(2, 3), dtype="<f4", optional=True))
    with_v = {step for step in range(40) if step % 7 > 3}
    with FakeServer(fields, num_ranks=1) as server:
        client.connect(server)
        for step in range(40):
            if step in with_v:
                client.say(f"put v float64 2,3 {step}")
            client.say(f"put u float64 4 {step}")
            client.say(f"send {step}")
        assert {client.hear() for _ in range(80 + len(with_v))} == {"staged", "ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 40)
        for step in with_v:
            assert np.array_equal(server.steps[7, step]["v"], values("float64", (2, 3), step).astype("<f4"))
        assert {step for _, step in server.steps if "v" in server.steps[7, step]} == with_v
        assert len(messages(server, Data)) < 40


def test_never_more_steps_than_the_credit_are_unacknowledged(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 3
        server.withholds_acks = True
        client.connect(server)
        sending = client.begin_to_send(*range(10))
        server.wait_until(lambda: num_pings(server) == 1)
        assert sum(it.num_steps for it in messages(server, Data)) == 3
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 10
        assert client.ask("finish") == "ok"
        assert_has(server, 10)


def test_the_credit_of_many_messages_comes_back_whole(client: Client) -> None:
    # A step of a ragged field travels alone.
    with FakeServer((FieldSpec(name="u", shape=(4,), ragged=True),), num_ranks=1) as server:
        server.credit, server.withholds_acks = 40, True
        client.connect(server)
        for steps in (range(40), range(40, 80)):
            assert client.send(*steps) == ["ok"] * 40
            server.do(server.acknowledge_all)
        server.withholds_acks = False
        assert client.ask("finish") == "ok"
        assert [(it.index, it.num_steps) for it in messages(server, Data)] == [(step, 1) for step in range(80)]


@pytest.mark.parametrize("credit", [4, 5, 7])
def test_steps_that_wait_for_company_count_to_the_credit(client: Client, credit: int) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = credit
        server.withholds_acks = True
        client.connect(server)
        sending = client.begin_to_send(*range(20))
        server.wait_until(lambda: num_pings(server) == 1)
        under_way = sum(it.num_steps for it in messages(server, Data))
        server.withholds_acks = False
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 20
        assert client.ask("finish") == "ok"
    assert under_way == credit
    assert len(server.steps) == 20


def test_a_rank_of_several_keeps_as_many_steps_as_its_credit_and_goes_on(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit, server.withholds_acks = 3, True
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        assert client.send(*range(6), count="2") == ["ok"] * 6
        answers = client.begin_to_send(6, count="2")
        before = num_pings(server)
        server.wait_until(lambda: num_pings(server) > before + 4)
        assert [it.index for it in messages(server, Data)] == [0, 1, 2]
        server.do(server.acknowledge_all)
        assert answers() == ["ok"]
        assert client.ask("finish") == "ok"
        assert [it.index + i for it in messages(server, Data) for i in range(it.num_steps)] == list(range(7))
        assert [(it.share, it.total) for it in messages(server, End)] == [(7, 7)]


def test_a_rank_of_several_keeps_as_many_steps_again_once_those_are_sent(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit, server.withholds_acks = 3, True
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        for steps in (range(6), range(6, 9)):
            assert client.send(*steps, count="2") == ["ok"] * len(steps)
            server.do(server.acknowledge_all)
        server.withholds_acks = False
        assert client.ask("finish") == "ok"
        assert [it.index + i for it in messages(server, Data) for i in range(it.num_steps)] == list(range(9))


def test_the_silence_of_a_server_adds_up_while_steps_are_kept(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 50
        client.connect(server, "simulation=5", f"timeout={4 * RELEASE_S}", rank=1, num_ranks=2)
        assert client.send(0, count="2") == ["ok"]
        server.do_now(lambda: setattr(server, "silent", True))
        answers = client.send(*range(1, 70), count="2")
        failed = [step for step, answer in enumerate(answers, start=1) if "UNREACHABLE" in answer]
        assert 50 <= failed[0] < 60


def test_a_rank_that_waits_for_credit_holds_nothing_back_for_the_others(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        server.withholds_acks = True
        client.connect(server, "simulation=0")
        # The second step of server rank 1 waits for company.
        sending = client.begin_to_send(1, 3, 0, 2, 4, 6, 8)
        server.wait_until(lambda: num_pings(server) == 1)
        assert [it.index for it in server.messages[1] if isinstance(it, Data)] == [1, 3]
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 7
        assert client.ask("finish") == "ok"


def test_lost_acknowledgements_are_asked_for_again(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 2
        server.drops_acks = True
        client.connect(server)
        assert client.send(0, 1, 2) == ["ok"] * 3
        assert client.ask("finish") == "ok"
        assert_has(server, 3)


def test_what_the_server_knows_is_not_sent_again_but_counts(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.known = {0: bytes([0b0101]), 1: b""}
        client.connect(server, "simulation=0")
        client.send(*range(6))
        assert client.ask("finish") == "ok"
    assert sorted(server.steps) == [(0, 1), (0, 3), (0, 4), (0, 5)]
    assert [(it.share, it.total) for it in messages(server, End)] == [(3, 6), (3, 6)]


def test_a_step_sent_twice_counts_once(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0, 1, 1)
        assert client.ask("finish") == "ok"
    assert [(it.share, it.total) for it in messages(server, End)] == [(2, 2)]
    assert sum(it.num_steps for it in messages(server, Data)) == 3


def test_a_simulation_that_sends_nothing_finishes_with_an_empty_share(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        client.connect(server)
        assert client.ask("finish") == "ok"
    for rank in (0, 1):
        opening, end = server.messages[rank]
        assert isinstance(opening, Open)
        assert opening.blocks == ()
        assert isinstance(end, End)
        assert (end.share, end.total) == (0, 0)


def test_without_a_number_of_steps_labels_are_still_bounded(client: Client) -> None:
    with FakeServer(SMALL) as server:
        client.connect(server)
        assert client.send(1_000_000) == ["error ARGUMENT: the study has the time steps 0 to 999999, but not 1000000"]
        assert client.ask("send 0") == "error ARGUMENT: field 'u' is missing in the first sample"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"


def test_send_says_stop_once_the_study_has_ended(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        client.connect(server)
        assert client.send(0) == ["ok"]
        server.withholds_acks = True
        server.do(server.stop_study)
        answers = client.send(*range(1, 20))
        first = answers.index("stop")
        assert set(answers[first:]) == {"stop"}
        assert client.ask("stop_reason") == "ok training converged"
        assert client.ask("send 1000000000") == "stop"
        assert client.ask("finish") == "stop"


def test_a_client_that_waits_learns_that_the_study_has_ended(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        server.withholds_acks = True
        client.work(server)
        sending = client.begin_to_send(*range(9))
        server.wait_until(lambda: num_pings(server) == 1)
        server.do(server.stop_study)
        assert sending()[-1] == "stop"
        assert client.ask("stop_reason") == "ok training converged"
        server.do_now(lambda: server.answers_to_hello.append(Stop(text="over")))
        assert client.ask("next") == "stop"


def test_a_simulation_that_comes_too_late_runs_on_without_a_study(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Stop(text="over")]
        msgspec.structs.replace(server.connection, simulation=3, attempt=1, parameters={"viscosity": 2.0}).write(
            server.path
        )
        assert client.connect(server) == "stop"
        assert client.ask("id") == "ok 3"
        assert client.ask("attempt") == "ok 1"
        # In Python they are a dictionary; in C and Fortran a call, which tells the end of the study.
        assert client.ask("parameter viscosity") in ("stop", "ok 2.000")
        assert client.send(0) == ["stop"]
        assert client.ask("stop_reason") == "ok over"
        assert client.ask("abandon") == "ok"


def test_refused_data_fails_the_users_call_and_every_later_one(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 1
        server.answers_to_data = [Refusal(reason=Reason.WRONG_STEP, text="step 0 is not wanted", sequence=0)]
        client.work(server)
        answers = {*client.send(0, 1, 2), client.ask("invalidate it"), client.ask("next"), client.ask("finish")} - {
            "ok"
        }
    (refused,) = answers
    assert refused.startswith("error REFUSED: server rank 0 at ipc://")
    assert refused.endswith("refused simulation 7: step 0 is not wanted")


def test_a_refused_open_fails_the_first_send(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_open = [Refusal(reason=Reason.WRONG_BLOCKS, text="the blocks overlap")]
        client.connect(server)
        (answer,) = client.send(0)
        assert "REFUSED" in answer
        assert "the blocks overlap" in answer


def test_a_refused_hello_fails_connect(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.UNKNOWN_SIMULATION, text="there is no simulation 900")]
        assert client.connect(server, "simulation=900") == (
            "error REFUSED: simulation 900 rank 0 cannot take part in study heat/1: there is no simulation 900"
        )


def test_a_busy_server_is_asked_again_later(client: Client) -> None:
    busy = Refusal(reason=Reason.BUSY, text="later")
    with FakeServer(SMALL, num_ranks=1) as server:
        server.answers_to_hello = [busy]
        server.answers_to_open = [busy]
        assert client.connect(server, "timeout=20") == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"
    assert len(server.hellos) == 2


def test_a_hello_without_an_answer_is_said_again(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [None]
        assert client.connect(server) == "ok"
        assert client.ask("abandon") == "ok"
    assert server.hellos[0] == server.hellos[1]


def test_a_silent_server_is_unreachable_after_the_time_limit(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.silent = True
        answer = client.connect(server, "timeout=0.1")
    assert answer.startswith("error UNREACHABLE: a simulation rank 0 waits for study heat/1 at ipc://")
    assert "no word for 0.1 s. Is the study still running, and is the connection file its newest?" in answer


def test_a_server_that_falls_silent_is_named(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=3) as server:
        client.connect(server, "simulation=17", "timeout=1")
        assert client.send(0) == ["ok"]
        server.do_now(lambda: setattr(server, "silent", True))
        answer = client.ask("finish")
    assert answer.startswith("error UNREACHABLE: simulation 17 rank 0 waits for server rank ")
    assert answer.endswith("no word for 1 s")


def test_a_slow_server_that_answers_is_waited_for_beyond_the_time_limit(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.withholds_acks = True
        client.connect(server, "timeout=1")
        client.send(0)
        finishing = client.begin("finish")
        server.wait_until(lambda: num_pings(server) >= 25)
        server.do(server.acknowledge_all)
        assert finishing() == "ok"


def test_abandoning_leaves_a_simulation_unfinished_but_sends_what_was_pending(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0, 1, 2)
        assert client.ask("abandon") == "ok"
        server.wait_until(lambda: len(server.steps) == 3)
    assert messages(server, End) == []


def test_an_invalidated_simulation_is_withdrawn_and_a_worker_goes_on(client: Client) -> None:
    with FakeServer(SMALL) as server:
        client.work(server)
        client.send(0)
        assert client.ask("invalidate it diverged") == "ok"
        assert client.ask("invalidate twice") == "ok"
        assert client.send(1) == ["stop"]
        assert client.ask("next") == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"
    assert [(it.simulation, it.reason) for it in server.invalidated] == [(7, "it diverged")]
    assert len(messages(server, End)) == 2


def test_a_simulation_that_cannot_be_withdrawn_any_more_fails(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_invalidate = [Refusal(reason=Reason.STALE_ATTEMPT, text="simulation 7 is finished already")]
        client.connect(server)
        client.send(0)
        refused = client.ask("invalidate it diverged")
        assert client.ask("finish") == refused
    assert refused == "error REFUSED: simulation 7 rank 0 could not be invalidated: simulation 7 is finished already"


def test_a_worker_that_finds_no_simulation_at_all_is_told_to_stop(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")]
        assert client.work(server) == "stop"
        assert client.ask("next") == "stop"


def test_a_worker_that_was_launched_for_one_simulation_gets_that_one(client: Client) -> None:
    with FakeServer(SMALL) as server:
        msgspec.structs.replace(server.connection, simulation=4, attempt=2).write(server.path)
        assert client.work(server) == "ok"
        assert client.ask("next") == "stop"
        assert client.ask("finish") == "ok"
    assert [(it.simulation, it.attempt) for it in server.hellos] == [(4, 2)]


def test_a_key_of_another_run_does_not_get_in(client: Client) -> None:
    with FakeServer(SMALL, transport="curve") as server, FakeServer(SMALL, transport="curve") as other:
        msgspec.structs.replace(server.connection, security=other.connection.security).write(server.path)
        assert "is the connection file its newest" in client.connect(server, "timeout=0.2")
    assert server.hellos == []


def test_ipc_is_used_only_on_the_servers_own_node(client: Client) -> None:
    with FakeServer(SMALL) as server:
        msgspec.structs.replace(server.connection, host="another-node").write(server.path)
        answer = client.connect(server)
    assert answer.startswith("error UNREACHABLE: none of the server's addresses can be used from ")
    assert server.connection.control[0] in answer


def test_a_server_on_this_node_whose_socket_file_is_gone_is_waited_for(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        gone = f"ipc://{server.path.parent}/gone"
        msgspec.structs.replace(server.connection, control=(gone,)).write(server.path)
        assert f"waits for study heat/1 at {gone}: no word for 0.1 s" in client.connect(server, "timeout=0.1")


def test_the_first_address_that_means_something_here_is_taken(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1, transport="tcp") as server:
        (address,) = server.connection.control
        gone = f"ipc://{server.path.parent}/gone"
        msgspec.structs.replace(server.connection, control=(gone, address)).write(server.path)
        server.endpoints = tuple((gone, *addresses) for addresses in server.endpoints)
        assert client.connect(server) == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"
