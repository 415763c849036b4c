"""Whatever travels together, a client keeps to its credit."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from stream_server.client_api import connect, session
from stream_server.errors import Unreachable
from stream_server.messages.client import End
from tests.client_api.test_client import SMALL, TINY, data, num_pings
from tests.support.fake_server import FakeServer


@pytest.mark.parametrize("credit", [4, 5, 7])
def test_steps_that_wait_for_company_count_to_the_credit(credit: int) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = credit
        server.withholds_acks = True
        with connect(server.connection) as simulation, ThreadPoolExecutor(1) as pool:
            sending = pool.submit(lambda: [simulation.send(step, u=TINY) for step in range(20)])
            server.wait_until(lambda: num_pings(server) == 1)
            under_way = sum(it.num_steps for it in data(server))
            server.withholds_acks = False
            server.do(server.acknowledge_all)
            assert sending.result(100) == [True] * 20
    assert under_way == credit
    assert len(server.steps) == 20


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RELEASE_S", 0.1)
    monkeypatch.setattr(session, "PING_S", 0.05)


def test_a_rank_of_several_keeps_as_many_steps_as_its_credit_and_goes_on(quick: None) -> None:
    with FakeServer(SMALL, num_ranks=1) as server, ThreadPoolExecutor(1) as pool:
        server.credit, server.withholds_acks = 3, True
        with connect(server.connection, rank=1, num_ranks=2, simulation_id=5) as simulation:
            assert all(simulation.send(step, u=TINY[2:]) for step in range(6))
            sending = pool.submit(simulation.send, 6, u=TINY[2:])
            before = num_pings(server)
            server.wait_until(lambda: num_pings(server) > before + 4)
            assert [it.index for it in data(server)] == [0, 1, 2]
            server.do(server.acknowledge_all)
            assert sending.result(100)
        assert [it.index + i for it in data(server) for i in range(it.num_steps)] == list(range(7))
        assert [(it.share, it.total) for it in server.messages[0] if isinstance(it, End)] == [(7, 7)]


def test_the_silence_of_a_server_adds_up_while_steps_are_kept(quick: None) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 50
        simulation = connect(server.connection, rank=1, num_ranks=2, simulation_id=5, timeout_s=0.4)
        simulation.send(0, u=TINY[2:])
        server.do_now(lambda: setattr(server, "silent", True))
        steps = itertools.count(1)
        with pytest.raises(Unreachable, match=r"no word for 0\.4 s"):
            all(simulation.send(step, u=TINY[2:]) for step in steps)
        assert 50 < next(steps) < 60
