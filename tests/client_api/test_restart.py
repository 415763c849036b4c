"""A server that is started again, and simulations of each language that go on."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_server.messages.client import (
    ATTACHING,
    MAX_PART_BYTES,
    Data,
    End,
    FieldSpec,
    Open,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
)
from tests.client_api.clients import SMALL, Client, assert_has, messages, received
from tests.fakes.server import FakeServer
from tests.native.conformance.values import values
from tests.support.examples import examples


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (3, 1), (1, 3), (2, 3)])
def test_just_what_a_new_server_does_not_know_is_sent_again(
    client: Client, routing: Routing, before: int, after: int
) -> None:
    known = {0, 1, 2, 5, 7}
    with FakeServer(SMALL, num_ranks=before) as server:
        server.credit = 4
        server.routing = routing
        client.connect(server)
        client.send(*range(20))
        server.wait_until(lambda: known <= received(server))
        server.move(incarnation=4, known=known, num_ranks=after)
        assert set(client.send(*range(20, 30))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 30)
        assert {index: server.num_sent[index] for index in range(30)} == {i: 0 if i in known else 1 for i in range(30)}
        assert {it.incarnation for it in messages(server, Open) + messages(server, Data)} == {4}


def test_the_same_attempt_says_hello_to_the_new_server(client: Client) -> None:
    with FakeServer(SMALL) as server:
        msgspec.structs.replace(server.connection, simulation=4, attempt=2).write(server.path)
        client.connect(server)
        client.send(0)
        server.move(incarnation=4)
        assert client.ask("finish") == "ok"
    assert [(it.simulation, it.attempt) for it in server.hellos] == [(4, 2), (4, 2)]


def test_an_attached_client_takes_the_attempt_that_the_new_server_gives(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.attempt = 0
        client.connect(server, "viscosity:0.5")
        client.send(0)
        server.attempt = 1
        server.move(incarnation=4)
        client.send(1)
        assert client.ask("finish") == "ok"
        assert_has(server, 2)
    first, second = server.hellos
    assert (first.simulation, first.attempt) == (None, ATTACHING)
    assert second == msgspec.structs.replace(first, simulation=7)
    assert {it.attempt for it in server.messages[0] if not isinstance(it, Ping)} == {1}


def test_what_the_newest_server_says_is_the_attempt(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.attempt = 0
        client.connect(server)
        client.send(0)
        assert client.ask("attempt") == "ok 0"
        server.attempt = 1
        server.move(incarnation=4)
        num_sent = 1
        while len(server.hellos) == 1:
            assert client.send(num_sent) == ["ok"]
            num_sent += 1
        assert client.ask("attempt") == "ok 1"
        assert client.ask("invalidate it diverged") == "ok"
    assert [(it.attempt, it.reason) for it in server.invalidated] == [(1, "it diverged")]


def test_a_send_that_waits_for_credit_goes_on_with_the_new_server(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 3
        server.withholds_acks = True
        client.connect(server)
        sending = client.begin_to_send(*range(20))
        server.wait_until(lambda: bool(messages(server, Ping)))
        server.withholds_acks = False
        server.move(incarnation=4, known={1, 2})
        assert sending() == ["ok"] * 20
        assert client.ask("finish") == "ok"
        assert_has(server, 20)


def test_a_rank_of_several_keeps_steps_anew_when_a_new_server_has_no_credit_left(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit, server.withholds_acks = 2, True
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        assert client.send(*range(4), count="2") == ["ok"] * 4
        server.move(incarnation=4)
        assert client.send(4, 5, count="2") == ["ok"] * 2
        server.withholds_acks = False
        server.do(server.acknowledge_all)
        assert client.ask("finish") == "ok"
        assert sorted(server.steps) == [(5, step) for step in range(6)]


def test_a_rank_of_several_may_keep_steps_again_once_those_that_it_kept_are_sent(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:

        def acknowledge() -> None:
            server.acknowledge_all()
            server.withholds_acks = True

        server.credit, server.withholds_acks = 2, True
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        assert client.send(*range(4), count="2") == ["ok"] * 4
        server.wait_until(lambda: received(server) == {0, 1})
        server.do_now(acknowledge)
        assert client.send(4, 5, count="2") == ["ok"] * 2
        assert received(server) == {0, 1, 2, 3}
        server.do_now(server.acknowledge_all)
        assert client.ask("finish") == "ok"
        assert sorted(server.steps) == [(5, step) for step in range(6)]


def test_a_finish_that_waits_goes_on_with_the_new_server(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.withholds_acks = True
        client.connect(server)
        client.send(*range(20))
        finishing = client.begin("finish")
        server.wait_until(lambda: len(messages(server, End)) == 2)
        server.withholds_acks = False
        server.move(incarnation=4, known={0, 1}, num_ranks=3)
        assert finishing() == "ok"
        assert_has(server, 20)


def test_steps_that_waited_for_company_are_not_forgotten(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        client.connect(server)
        client.send(*range(11))
        assert len(received(server)) < 11
        server.move(incarnation=4)
        assert client.ask("finish") == "ok"
        assert_has(server, 11)


def test_steps_are_sent_again_in_the_order_in_which_they_were_sent_first(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 2
        client.connect(server)
        client.send(*reversed(range(6)))
        server.move(incarnation=4, num_ranks=1)
        assert client.ask("finish") == "ok"
        assert [it.index for it in messages(server, Data)] == [5, 4, 3, 2, 1, 0]


def restart_silent(server: FakeServer) -> None:
    server.silent = True
    server.restart(incarnation=4)


def restart_busy(server: FakeServer) -> None:
    server.answers_to_open = [Refusal(reason=Reason.BUSY, text="later")] * 1000
    server.restart(incarnation=4)


def restart_full(server: FakeServer) -> None:
    server.withholds_acks = True
    server.restart(incarnation=4)


@pytest.mark.parametrize(
    ("restart", "reached"),
    [
        (restart_silent, lambda server: len(server.hellos) == 2),
        (restart_busy, lambda server: messages(server, Open)),
        (restart_full, lambda server: messages(server, Data) and messages(server, Ping)),
    ],
    ids=["hello", "open", "resend"],
)
@pytest.mark.parametrize("num_more", [0, 20])
def test_a_restart_in_the_middle_of_a_reconnection_starts_it_over(
    client: Client, restart: Callable[[FakeServer], None], reached: Callable[[FakeServer], Any], num_more: int
) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        client.connect(server)
        client.send(*range(20))
        server.wait_until(lambda: {0, 3} <= received(server))
        server.do_now(server.die)
        sending = client.begin_to_send(*range(20, 20 + num_more))
        finishing = client.begin("finish")
        server.do_now(lambda: restart(server))
        server.wait_until(lambda: bool(reached(server)))

        def start_over() -> None:
            server.silent = server.withholds_acks = False
            server.answers_to_open = []
            server.die()
            server.restart(incarnation=5, known={0, 3}, num_ranks=3)

        server.do_now(start_over)
        assert sending() == ["ok"] * num_more
        assert finishing() == "ok"
        assert_has(server, 20 + num_more)


def test_a_server_that_was_restarted_before_the_first_step_is_found(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        client.connect(server)
        server.move(incarnation=4, num_ranks=1)
        client.send(0, 1)
        assert client.ask("finish") == "ok"
        assert_has(server, 2)


def test_a_client_whose_answer_was_lost_asks_the_next_server_by_the_same_name(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.do_now(lambda: setattr(server, "silent", True))
        connecting = client.begin(f"connect 0 1 connection={server.path}")
        server.wait_until(lambda: bool(server.hellos))
        server.do_now(lambda: setattr(server, "silent", False))
        server.move(incarnation=4)
        assert connecting() == "ok"
        client.send(0)
        assert client.ask("finish") == "ok"
        assert len(set(server.names)) == 1 < len(server.names)


def test_connect_finds_a_server_that_is_just_being_restarted(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.do_now(server.die)
        connecting = client.begin(f"connect 0 1 connection={server.path}")
        server.do_now(lambda: server.restart(incarnation=4))
        assert connecting() == "ok"
        client.send(0)
        assert client.ask("finish") == "ok"
        assert_has(server, 1)


def test_a_new_server_at_the_old_address_is_waited_for_until_the_file_tells_of_it(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0, 1, 2)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        finishing = client.begin("finish")
        server.wait_until(lambda: len(messages(server, Open)) > 2)
        msgspec.structs.replace(server.connection, incarnation=4).write(server.path)
        assert finishing() == "ok"
        assert_has(server, 3)


def test_a_hello_that_meets_a_new_server_at_the_old_address_is_said_again_where_the_file_tells(client: Client) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.STALE_INCARNATION, text="the server was started again")]
        connecting = client.begin(f"connect 0 1 connection={server.path}")
        server.wait_until(lambda: len(server.hellos) == 1)
        server.move(incarnation=4)
        assert connecting() == "ok"
        client.send(*range(3))
        assert client.ask("finish") == "ok"
        assert_has(server, 3)


def test_an_open_that_a_new_server_refuses_is_repeated_after_another_hello(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        sending = client.begin_to_send(0)
        server.wait_until(lambda: len(messages(server, Open)) > 1)
        msgspec.structs.replace(server.connection, incarnation=4).write(server.path)
        assert sending() == ["ok"]
        assert client.ask("finish") == "ok"
        assert_has(server, 1)


def test_a_new_server_at_the_old_address_that_no_file_tells_of_is_named(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server, "timeout=1")
        client.send(0)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        answer = client.ask("finish")
    assert "UNREACHABLE" in answer
    assert answer.endswith("no word for 1 s; a new server is there (say Hello again)")


def test_a_file_that_is_no_connection_file_for_a_moment_does_no_harm(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.withholds_acks = True
        client.connect(server)
        client.send(0)
        finishing = client.begin("finish")
        server.path.write_text("{")
        seen = len(messages(server, Ping))
        server.wait_until(lambda: len(messages(server, Ping)) > seen + 1)
        server.path.unlink()
        server.wait_until(lambda: len(messages(server, Ping)) > seen + 3)
        server.withholds_acks = False
        server.move(incarnation=4)
        assert finishing() == "ok"
        assert_has(server, 1)


def test_a_new_server_that_does_not_want_the_simulation_says_why(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0)
        server.answers_to_hello = [Refusal(reason=Reason.STALE_ATTEMPT, text="attempt 0 is not the current one")]
        server.move(incarnation=4)
        assert client.ask("finish") == (
            "error REFUSED: simulation 7 rank 0 cannot go on in study heat/1, which was started again: "
            "attempt 0 is not the current one"
        )


def test_a_study_that_ended_meanwhile_wants_nothing_more(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0)
        server.answers_to_hello = [Stop(text="over")]
        server.move(incarnation=4)
        assert client.ask("finish") == "stop"
    assert messages(server, Open) == []


def test_steps_that_nobody_holds_any_longer_are_lost(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit, server.window_bytes = 2, 3000
        client.connect(server)
        client.send(*range(20))
        server.move(incarnation=4, known={0, 1, 2})
        # The steps after the restart may still be sent before it is seen.
        answers = client.send(*range(20, 40))
        lost = answers[-1]
        assert lost.startswith("error STEPS_LOST: the study went back to its last checkpoint, which lacks ")
        assert lost.endswith(
            "time steps of simulation 7 rank 0 that this process no longer holds (client.window is "
            "0.00286102 MiB): a new attempt will produce them"
        )
        assert client.ask("finish") == lost
    assert messages(server, Data) == []


def test_what_is_durable_is_not_held_any_longer(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.makes_durable = True
        server.credit = 2
        client.connect(server)
        client.send(*range(10))
        server.move(incarnation=4, known=set())
        assert "STEPS_LOST" in client.ask("finish")


def test_a_commit_lets_go_of_what_was_sent_before_it_only(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        client.connect(server)
        client.send(*range(10))
        server.do_now(server.commit)
        committed = received(server)
        client.send(*range(10, 30))
        server.move(incarnation=4, known=committed)
        assert client.ask("finish") == "ok"
        assert_has(server, 30)


def test_a_step_in_parts_and_optional_fields_come_again_as_they_were(client: Client) -> None:
    shape = (3, MAX_PART_BYTES // 16)
    fields = (FieldSpec(name="u", shape=shape), FieldSpec(name="v", shape=(5,), dtype="<f4", optional=True))
    with FakeServer(fields, num_ranks=2) as server:
        client.connect(server)
        for step in range(4):
            client.ask(f"put u float64 {shape[0]},{shape[1]} {step}")
            if step % 2:
                client.ask(f"put v float32 5 {step}")
            assert client.ask(f"send {step}") == "ok"
        server.move(incarnation=4, known={0}, num_ranks=1)
        assert client.ask("finish") == "ok"
    assert {index for _, index in server.steps} >= {1, 2, 3}
    for step in (1, 2, 3):
        assert np.array_equal(server.steps[7, step]["u"], values("float64", shape, step))
        assert ("v" in server.steps[7, step]) == bool(step % 2)
    assert np.array_equal(server.steps[7, 3]["v"], values("float32", (5,), 3))


def test_each_rank_of_a_parallel_simulation_reconnects_alone(begin: Callable[[], Client]) -> None:
    with FakeServer((FieldSpec(name="u", shape=(4, 10)),)) as server, ExitStack() as stack:
        server.credit = 8
        ranks = [stack.enter_context(begin()) for _ in range(2)]
        for rank, client in enumerate(ranks):
            assert client.connect(server, "simulation=5", rank=rank, num_ranks=2) == "ok"
        first = [client.begin_to_send(*range(40), count="2,10") for client in ranks]
        assert [set(answers()) for answers in first] == [{"ok"}] * 2
        server.move(incarnation=4, num_ranks=3)
        then = [client.begin_to_send(*range(40, 60), count="2,10") for client in ranks]
        assert [set(answers()) for answers in then] == [{"ok"}] * 2
        finishing = [client.begin("finish") for client in ranks]
        assert [answer() for answer in finishing] == ["ok"] * 2
        for step in range(60):
            half = values("float64", (2, 10), step)
            assert np.array_equal(server.steps[5, step]["u"], np.concatenate([half, half]))
        assert {(it.share, it.total) for it in messages(server, End)} == {(20, 60)}
        assert len(messages(server, End)) == 6


def test_a_rank_without_any_block_reconnects_and_loses_nothing(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        assert [client.ask(f"send {step}") for step in range(3)] == ["ok"] * 3
        server.move(incarnation=4)
        assert client.ask("finish") == "ok"
        assert [(it.share, it.total) for it in messages(server, End)] == [(3, 3)]


def test_a_worker_goes_on_with_the_next_server(client: Client) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.work(server)
        client.send(0)
        server.move(incarnation=4)
        assert client.ask("next") == "ok"
        client.send(0)
        server.do_now(
            lambda: server.answers_to_hello.append(Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left"))
        )
        assert client.ask("next") == "stop"
        assert client.ask("finish") == "ok"
    assert [it.simulation for it in server.hellos] == [None, 7, None, None]


restarts = st.lists(
    st.tuples(st.integers(0, 30), st.sets(st.integers(0, 29)), st.integers(1, 3)), min_size=1, max_size=4
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(restarts, st.integers(2, 9), st.sampled_from(Routing))
def test_whatever_servers_come_and_go_the_last_one_has_every_step(
    begin: Callable[[], Client], restarts: list[tuple[int, set[int], int]], credit: int, routing: Routing
) -> None:
    with FakeServer(SMALL, num_ranks=2) as server, begin() as client:
        server.credit = credit
        server.routing = routing
        committed: set[int] = set()
        client.connect(server)
        for index in range(31):
            for known, num_ranks in (it[1:] for it in restarts if it[0] == index):
                server.do_now(server.die)
                # What one server knew from a checkpoint, the later ones know too.
                committed |= known & received(server)
                server.do_now(
                    partial(server.restart, incarnation=server.incarnation + 1, known=committed, num_ranks=num_ranks)
                )
            if index < 30:
                assert client.send(index) == ["ok"]
        assert client.ask("finish") == "ok"
        assert_has(server, 30)
        assert max(server.num_sent.values(), default=0) <= 1
