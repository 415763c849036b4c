"""The steps that a client keeps when a connection is lost and the server is started again later."""

import pytest

from stream_server.client_api import connect, session, watch
from stream_server.messages.client import Data, FieldSpec
from tests.client_api.clients import assert_has, messages, u
from tests.fakes.server import FakeServer

SMALL = (FieldSpec(name="u", shape=(4,)),)


def lose_connections(server: FakeServer) -> None:
    """The same server has all that has come, and knows none of its connections any more."""
    known = {index for _, index in server.steps}
    server.do_now(lambda: server.restart_in_place(incarnation=server.incarnation, known=known))


def test_what_a_server_knows_but_has_not_saved_is_sent_again_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.05)
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        simulation = connect(server.path)
        for step in range(20):
            simulation.send(step, u=u(step))
        server.wait_until(lambda: len(server.steps) > 5)
        lose_connections(server)
        for step in range(20, 40):
            simulation.send(step, u=u(step))
        server.wait_until(lambda: len(server.steps) > 25)
        server.move(incarnation=4, known={0, 1}, num_ranks=3)
        simulation.finish()
        assert_has(server, 40)
        assert {it.incarnation for it in messages(server, Data)} == {4}
