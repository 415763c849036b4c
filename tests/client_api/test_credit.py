"""Whatever travels together, a client keeps to its credit."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stream_server.client_api import connect
from tests.client_api.fake_server import FakeServer
from tests.client_api.test_client import SMALL, TINY, data, num_pings


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
            assert sending.result(10) == [True] * 20
    assert under_way == credit
    assert len(server.steps) == 20
