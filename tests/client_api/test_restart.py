"""A server that is started again, and simulations that go on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_server.client_api import connect, session, simulations, watch
from stream_server.client_api.retention import ENTRY_BYTES
from stream_server.client_api.simulation import Simulation
from stream_server.errors import Refused, StepsLost
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
from tests.support.examples import examples
from tests.support.fake_server import FakeServer

SMALL = (FieldSpec(name="u", shape=(4,)),)
TINY = np.arange(4.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for half a second here."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.05)
    monkeypatch.setattr(session, "REOPEN_S", 0.05)


def send(simulation: Simulation, *indices: int) -> list[bool]:
    return [simulation.send(index, u=TINY + index) for index in indices]


def received(server: FakeServer) -> set[int]:
    return {index for _, index in server.steps}


def messages(server: FakeServer, kind: type) -> list:  # type: ignore[type-arg]
    return [it for of_rank in list(server.messages.values()) for it in list(of_rank) if isinstance(it, kind)]


def assert_has(server: FakeServer, num: int, simulation: int = 7) -> None:
    """The server has so many steps, each as it was sent, and was told so."""
    assert sorted(server.steps) == [(simulation, index) for index in range(num)]
    assert all(np.array_equal(server.steps[simulation, index]["u"], TINY + index) for index in range(num))
    ends = [it for it in messages(server, End) if it.incarnation == server.incarnation]
    assert sum(it.share for it in ends) == num
    assert {it.total for it in ends} == {num}


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (3, 1), (1, 3), (2, 3)])
def test_just_what_a_new_server_does_not_know_is_sent_again(routing: Routing, before: int, after: int) -> None:
    known = {0, 1, 2, 5, 7}
    with FakeServer(SMALL, num_ranks=before) as server:
        server.credit = 4
        server.routing = routing
        with connect(server.path) as simulation:
            send(simulation, *range(20))
            server.wait_until(lambda: known <= received(server))
            server.move(incarnation=4, known=known, num_ranks=after)
            send(simulation, *range(20, 30))
    assert_has(server, 30)
    assert {index: server.num_sent[index] for index in range(30)} == {i: 0 if i in known else 1 for i in range(30)}
    assert {it.incarnation for it in messages(server, Open) + messages(server, Data)} == {4}


def test_the_same_attempt_says_hello_to_the_new_server() -> None:
    with FakeServer(SMALL) as server:
        launched = msgspec.structs.replace(server.connection, simulation=4, attempt=2)
        launched.write(server.path)
        simulation = connect(server.path)
        send(simulation, 0)
        server.move(incarnation=4)
        simulation.finish()
    assert [(it.simulation, it.attempt) for it in server.hellos] == [(4, 2), (4, 2)]


def test_an_attached_client_takes_the_attempt_that_the_new_server_gives() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.attempt = 0
        with connect(server.path, parameters={"viscosity": 0.5}) as simulation:
            send(simulation, 0)
            server.attempt = 1
            server.move(incarnation=4)
            send(simulation, 1)
    assert_has(server, 2)
    first, second = server.hellos
    assert (first.simulation, first.attempt) == (None, ATTACHING)
    assert second == msgspec.structs.replace(first, simulation=7)
    assert {it.attempt for it in server.messages[0] if not isinstance(it, Ping)} == {1}


def test_the_attempt_of_the_new_server_is_the_one_that_is_invalidated() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        server.attempt, server.credit, server.withholds_acks = 0, 1, True
        simulation = connect(server.path, parameters={"viscosity": 0.5})
        assert simulation.attempt == 0
        sending = pool.submit(send, simulation, 0, 1)
        server.wait_until(lambda: bool(messages(server, Ping)))
        server.attempt, server.withholds_acks = 5, False
        server.move(incarnation=4)
        sending.result(100)
        assert simulation.attempt == 5
        simulation.invalidate("diverged")
    assert [it.attempt for it in server.invalidated] == [5]
    assert simulation.attempt == 5


def test_a_send_that_waits_for_credit_goes_on_with_the_new_server() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, ThreadPoolExecutor(1) as pool:
        server.credit = 3
        server.withholds_acks = True
        with connect(server.path) as simulation:
            sending = pool.submit(send, simulation, *range(20))
            server.wait_until(lambda: bool(messages(server, Ping)))
            server.withholds_acks = False
            server.move(incarnation=4, known={1, 2})
            assert sending.result(100) == [True] * 20
    assert_has(server, 20)


def test_a_finish_that_waits_goes_on_with_the_new_server() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, ThreadPoolExecutor(1) as pool:
        server.withholds_acks = True
        simulation = connect(server.path)
        send(simulation, *range(20))
        finishing = pool.submit(simulation.finish)
        server.wait_until(lambda: len(messages(server, End)) == 2)
        server.withholds_acks = False
        server.move(incarnation=4, known={0, 1}, num_ranks=3)
        finishing.result(100)
        assert_has(server, 20)


def test_steps_that_waited_for_company_are_not_forgotten() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, connect(server.path) as simulation:
        send(simulation, *range(11))
        assert len(received(server)) < 11
        server.move(incarnation=4)
        simulation.finish()
    assert_has(server, 11)


def test_steps_are_sent_again_in_the_order_in_which_they_were_sent_first() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 2
        with connect(server.path) as simulation:
            send(simulation, *reversed(range(6)))
            server.move(incarnation=4, num_ranks=1)
            simulation.finish()
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
    restart: Callable[[FakeServer], None], reached: Callable[[FakeServer], bool], num_more: int
) -> None:
    with FakeServer(SMALL, num_ranks=2) as server, ThreadPoolExecutor(1) as pool:
        server.credit = 4
        simulation = connect(server.path)
        send(simulation, *range(20))
        server.wait_until(lambda: {0, 3} <= received(server))
        server.do_now(server.die)
        going_on = pool.submit(lambda: (send(simulation, *range(20, 20 + num_more)), simulation.finish()))
        server.do_now(lambda: restart(server))
        server.wait_until(lambda: bool(reached(server)))

        def start_over() -> None:
            server.silent = server.withholds_acks = False
            server.answers_to_open = []
            server.die()
            server.restart(incarnation=5, known={0, 3}, num_ranks=3)

        server.do_now(start_over)
        going_on.result(100)
        assert_has(server, 20 + num_more)


def test_a_server_that_was_restarted_before_the_first_step_is_found() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, connect(server.path) as simulation:
        server.move(incarnation=4, num_ranks=1)
        send(simulation, 0, 1)
        simulation.finish()
        assert_has(server, 2)


def test_connect_finds_a_server_that_is_just_being_restarted() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        server.do_now(server.die)
        connecting = pool.submit(connect, server.path)
        server.do_now(lambda: server.restart(incarnation=4))
        with connecting.result(100) as simulation:
            send(simulation, 0)
    assert_has(server, 1)


def test_a_client_whose_answer_was_lost_asks_the_next_server_by_the_same_name() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        server.do_now(lambda: setattr(server, "silent", True))
        connecting = pool.submit(connect, server.path)
        server.wait_until(lambda: bool(server.hellos))
        server.do_now(lambda: setattr(server, "silent", False))
        server.move(incarnation=4)
        with connecting.result(100) as simulation:
            send(simulation, 0)
    assert len(set(server.names)) == 1 < len(server.names)


def test_a_new_server_at_the_old_address_is_waited_for_until_the_file_tells_of_it() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        simulation = connect(server.path)
        send(simulation, 0, 1, 2)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        finishing = pool.submit(simulation.finish)
        server.wait_until(lambda: len(messages(server, Open)) > 2)
        assert not finishing.done()
        msgspec.structs.replace(server.connection, incarnation=4).write(server.path)
        finishing.result(100)
        assert_has(server, 3)


def test_a_hello_that_meets_a_new_server_at_the_old_address_is_said_again_where_the_file_tells() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.STALE_INCARNATION, text="the server was started again")]
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, server.path)
            server.wait_until(lambda: len(server.hellos) == 1)
            server.move(incarnation=4)
            with connecting.result(100) as simulation:
                send(simulation, *range(3))
        assert_has(server, 3)


def test_an_open_that_a_new_server_refuses_is_repeated_after_another_hello() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        simulation = connect(server.path)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        sending = pool.submit(send, simulation, 0)
        server.wait_until(lambda: len(messages(server, Open)) > 1)
        msgspec.structs.replace(server.connection, incarnation=4).write(server.path)
        assert sending.result(100) == [True]
        simulation.finish()
        assert_has(server, 1)


def test_without_the_path_of_a_file_a_new_server_cannot_be_found() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        simulation = connect(server.connection)
        send(simulation, 0)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        with pytest.raises(Refused, match=r"was started again: .* not given the path of a connection file"):
            simulation.finish()


def test_a_new_server_that_does_not_want_the_simulation_says_why() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        simulation = connect(server.path)
        send(simulation, 0)
        server.answers_to_hello = [Refusal(reason=Reason.STALE_ATTEMPT, text="attempt 0 is not the current one")]
        server.move(incarnation=4)
        with pytest.raises(Refused, match=r"cannot go on in study heat/1.*: attempt 0 is not the current one"):
            simulation.finish()


def test_a_study_that_ended_meanwhile_wants_nothing_more() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, connect(server.path) as simulation:
        send(simulation, 0)
        server.answers_to_hello = [Stop(text="over")]
        server.move(incarnation=4)
        simulation.finish()
    assert messages(server, Open) == []


def test_steps_that_nobody_holds_any_longer_are_lost() -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit, server.window_bytes = 2, 3000
        simulation = connect(server.path)
        send(simulation, *range(20))
        server.move(incarnation=4, known={0, 1, 2})
        with pytest.raises(StepsLost, match=r"simulation 7 rank 0 that .* a new attempt will produce them"):
            simulation.finish()
        with pytest.raises(StepsLost, match=r"1\d time steps"):
            send(simulation, 20)
    assert messages(server, Data) == []


def test_what_is_durable_is_not_held_any_longer() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.makes_durable = True
        server.credit = 2
        simulation = connect(server.path)
        send(simulation, *range(10))
        server.move(incarnation=4, known=set())
        with pytest.raises(StepsLost):
            simulation.finish()


def test_a_commit_lets_go_of_what_was_sent_before_it_only() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, connect(server.path) as simulation:
        server.credit = 4
        send(simulation, *range(10))
        server.do_now(server.commit)
        committed = received(server)
        send(simulation, *range(10, 30))
        server.move(incarnation=4, known=committed)
        simulation.finish()
    assert_has(server, 30)


def test_what_is_kept_stays_within_the_window() -> None:
    with FakeServer(SMALL, num_ranks=3) as server:
        server.credit, server.window_bytes = 8, 100_000
        with connect(server.path) as simulation:
            for index in range(500):
                send(simulation, index)
                retention = simulation._session._retention  # type: ignore[attr-defined]
                # To each of three ranks eight steps may be on their way, each alone in its message.
                assert retention.num_bytes <= 100_000 + 24 * (ENTRY_BYTES + TINY.nbytes)
            assert retention.num_bytes > 50_000


def test_a_step_in_parts_and_optional_fields_come_again_as_they_were() -> None:
    shape = (3, MAX_PART_BYTES // 16)
    fields = (FieldSpec(name="u", shape=shape), FieldSpec(name="v", shape=(5,), dtype="<f4", optional=True))
    u = np.random.default_rng(1).random(shape)
    with FakeServer(fields, num_ranks=2) as server, connect(server.path) as simulation:
        for index in range(4):
            optional = {"v": np.arange(5.0) + index} if index % 2 else {}
            simulation.send(index, u=u + index, **optional)
        server.move(incarnation=4, known={0}, num_ranks=1)
        simulation.finish()
    assert {index for _, index in server.steps} >= {1, 2, 3}
    for index in (1, 2, 3):
        assert np.array_equal(server.steps[7, index]["u"], u + index)
        assert ("v" in server.steps[7, index]) == bool(index % 2)
    assert server.steps[7, 3]["v"].tolist() == [3, 4, 5, 6, 7]


def test_each_rank_of_a_parallel_simulation_reconnects_alone() -> None:
    whole = np.arange(40.0).reshape(4, 10)
    moved = threading.Event()

    def run(server: FakeServer, rank: int) -> None:
        with connect(server.path, rank=rank, num_ranks=2, simulation_id=5) as simulation:
            for step in range(60):
                simulation.send(step, u=whole[2 * rank : 2 * rank + 2] + step)
                if step == 40 and rank == 0:
                    server.move(incarnation=4, num_ranks=3)
            moved.wait() if rank else moved.set()

    with FakeServer((FieldSpec(name="u", shape=(4, 10)),)) as server, ThreadPoolExecutor(2) as pool:
        server.credit = 8
        for running in [pool.submit(run, server, rank) for rank in range(2)]:
            running.result(100)
        assert all(np.array_equal(server.steps[5, step]["u"], whole + step) for step in range(60))
        assert {(it.share, it.total) for it in messages(server, End)} == {(20, 60)}
        assert len(messages(server, End)) == 6


def test_a_rank_without_any_block_reconnects_and_loses_nothing() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        simulation = connect(server.path, rank=1, num_ranks=2, simulation_id=5)
        for step in range(3):
            simulation.send(step)
        server.move(incarnation=4)
        simulation.finish()
        assert [(it.share, it.total) for it in messages(server, End)] == [(3, 3)]


def test_a_worker_goes_on_with_the_next_server() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        for num, simulation in enumerate(simulations(server.path)):
            send(simulation, 0)
            if num == 0:
                server.move(incarnation=4)
            else:
                server.answers_to_hello = [Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")]
        assert [it.simulation for it in server.hellos] == [None, 7, None, None]


restarts = st.lists(
    st.tuples(st.integers(0, 30), st.sets(st.integers(0, 29)), st.integers(1, 3)), min_size=1, max_size=4
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(restarts, st.integers(2, 9), st.sampled_from(Routing))
def test_whatever_servers_come_and_go_the_last_one_has_every_step(
    restarts: list[tuple[int, set[int], int]], credit: int, routing: Routing
) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = credit
        server.routing = routing
        committed: set[int] = set()
        with connect(server.path) as simulation:
            for index in range(31):
                for known, num_ranks in (it[1:] for it in restarts if it[0] == index):
                    server.do_now(server.die)
                    # What one server knew from a checkpoint, the later ones know too.
                    committed |= known & received(server)
                    server.do_now(
                        partial(
                            server.restart, incarnation=server.incarnation + 1, known=committed, num_ranks=num_ranks
                        )
                    )
                if index < 30:
                    send(simulation, index)
    assert_has(server, 30)
    assert max(server.num_sent.values(), default=0) <= 1
