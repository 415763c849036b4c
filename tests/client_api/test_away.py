"""The behaviour of a simulation, in each language, while the server does not answer: `client.if_server_away`."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from stream_server.messages.client import Away, Data, End, Open
from tests.client_api.clients import SMALL, Client, assert_has, messages
from tests.fakes.server import FakeServer

TIMEOUT_S = 0.3
# A busy machine may keep a test from what the client waits for, such as the next touch of a file, for about so long.
BUSY_S = 1.5
FIRST = range(3)
COMPLAINT = (
    "simulation 7 rank 0: the server of study heat/1 is away. The simulation ends without it; a new attempt will"
)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        yield server


def begin_and_lose(client: Client, server: FakeServer, policy: Away, *, wait_s: float = 20.0) -> None:
    server.if_server_away, server.wait_s = policy, wait_s
    assert client.connect(server, f"timeout={TIMEOUT_S}") == "ok"
    assert client.send(*FIRST) == ["ok"] * 3
    server.do_now(server.die)


def test_stop_ends_the_simulation_as_soon_as_the_server_is_away(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.STOP)
    failed = client.send(*range(3, 20))[-1]
    assert re.fullmatch(
        r"error UNREACHABLE: simulation 7 rank 0 waits for server rank \d at ipc://\S+: no word for 0\.3 s", failed
    )
    assert client.ask("put u float64 4 20") == "staged"
    assert client.ask("send 20") == failed
    assert client.ask("finish") == failed


def test_wait_waits_for_a_server_that_comes_back_after_the_time_limit(
    client: Client, begin: Callable[[], Client], server: FakeServer
) -> None:
    begin_and_lose(client, server, Away.WAIT)
    sending = client.begin_to_send(*range(3, 20))
    # Another simulation is told of the silence of just this server; by then the first one has waited as long.
    with begin() as other:
        assert "UNREACHABLE" in other.connect(server, f"timeout={3 * TIMEOUT_S}")
    server.do_now(lambda: server.restart(incarnation=4, known={0}))
    assert sending() == ["ok"] * 17
    assert client.ask("finish") == "ok"
    assert_has(server, 20)


def touch(server: FakeServer, waiting: "Future[Any]") -> None:
    """Touch the connection file for longer than anything may wait that is not told to, while this waits."""
    for _ in range(20):
        os.utime(server.path)
        with pytest.raises(TimeoutError):
            waiting.result(TIMEOUT_S / 3)


def test_a_simulation_that_begins_while_no_server_is_there_waits_as_long_as_the_launcher_says_that_one_will_come(
    client: Client, server: FakeServer
) -> None:
    server.do_now(server.die)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(client.connect, server, f"timeout={BUSY_S}")
        touch(server, entering)
        server.do_now(lambda: server.restart(incarnation=4))
        assert entering.result(100) == "ok"
    assert client.send(*range(20)) == ["ok"] * 20
    assert client.ask("finish") == "ok"
    assert_has(server, 20)


def test_wait_waits_as_long_as_the_launcher_says_that_a_server_will_come(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.WAIT, wait_s=BUSY_S)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send, *range(3, 20))
        touch(server, sending)
        assert sending.result(100)[-1].endswith(f"no word for {BUSY_S} s")


def test_stop_does_not_wait_though_the_launcher_says_that_a_server_will_come(
    client: Client, server: FakeServer
) -> None:
    begin_and_lose(client, server, Away.STOP)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send, *range(3, 20))
        while not sending.done():
            os.utime(server.path)
        assert "UNREACHABLE" in sending.result()[-1]


def test_wait_gives_up_after_its_time(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.WAIT, wait_s=0.6)
    assert client.send(*range(3, 20))[-1].endswith("no word for 0.6 s")


def test_wait_never_gives_up_before_the_server_is_away(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.WAIT, wait_s=0.01)
    assert client.ask("finish").endswith(f"no word for {TIMEOUT_S} s")


def test_continue_goes_on_without_the_server_and_says_so_at_the_end(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    assert client.send(*range(3, 200)) == ["ok"] * 197
    assert client.ask("finish") == "ok"
    client.complaint = COMPLAINT


def test_continue_leaves_when_the_server_goes_away_at_the_end(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    assert client.ask("finish") == "ok"
    client.complaint = COMPLAINT


def test_continue_takes_part_again_when_the_server_comes_back(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    client.send(*range(3, 50))
    server.do_now(lambda: server.restart(incarnation=4, known={1}, num_ranks=3))
    client.send(*range(50, 60))
    assert client.ask("finish") == "ok"
    assert_has(server, 60)


def test_continue_looks_for_a_new_server_once_more_at_the_end(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    client.send(*range(3, 50))
    server.do_now(lambda: server.restart(incarnation=4))
    assert client.ask("finish") == "ok"
    assert_has(server, 50)


def test_continue_holds_no_more_than_the_window_and_stays_without_a_server_that_needs_more(
    client: Client, server: FakeServer
) -> None:
    server.window_bytes = 10_000
    begin_and_lose(client, server, Away.CONTINUE)
    client.send(*range(3, 100))
    server.do_now(lambda: server.restart(incarnation=4))
    num_sent = 100
    while not messages(server, Open):
        assert client.send(num_sent) == ["ok"]
        num_sent += 1
    server.move(incarnation=5)
    assert client.send(*range(num_sent, num_sent + 20)) == ["ok"] * 20
    assert client.ask("finish") == "ok"
    assert len(server.hellos) == 2
    assert messages(server, Open) + messages(server, Data) + messages(server, End) == []
    client.complaint = COMPLAINT


def test_continue_does_not_wait_again_for_a_new_server_that_did_not_answer(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    client.send(*range(3, 50))

    def restart_silent() -> None:
        server.silent = True
        server.restart(incarnation=4)

    server.do_now(restart_silent)
    num_sent = 50
    while len(server.hellos) == 1:
        assert client.send(num_sent) == ["ok"]
        num_sent += 1
    said = len(server.hellos)
    assert client.send(*range(num_sent, num_sent + 50)) == ["ok"] * 50
    # The last one of those before may have been under way.
    assert len(server.hellos) <= said + 1
    server.do_now(lambda: setattr(server, "silent", False))
    server.move(incarnation=5)
    assert client.ask("finish") == "ok"
    assert_has(server, num_sent + 50)


def test_continue_goes_on_though_it_never_spoke_to_a_server_rank(client: Client, server: FakeServer) -> None:
    server.if_server_away = Away.CONTINUE
    client.connect(server, f"timeout={TIMEOUT_S}")
    server.do_now(server.die)
    assert client.send(0, 1) == ["ok"] * 2
    assert client.ask("finish") == "ok"
    client.complaint = COMPLAINT


def test_continue_still_tells_a_mistake_where_it_is_made(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    client.send(*range(3, 50))
    (answer,) = client.send(50, count="3")
    assert answer == "error ARGUMENT: field 'u' must have the shape (4,), but has (3,)"
    assert client.ask("finish") == "ok"
    client.complaint = COMPLAINT


@pytest.mark.parametrize("policy", [Away.STOP, Away.WAIT])
def test_a_simulation_that_cannot_be_invalidated_ends(client: Client, server: FakeServer, policy: Away) -> None:
    begin_and_lose(client, server, policy, wait_s=0.4)
    failed = client.ask("invalidate diverged")
    assert "UNREACHABLE" in failed
    assert client.ask("send 3") == failed


def test_continue_does_not_insist_on_being_invalidated(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.CONTINUE)
    assert client.ask("invalidate diverged") == "ok"
    assert client.send(3) == ["stop"]
    client.complaint = COMPLAINT


def test_a_restarted_server_hears_of_an_invalid_simulation(client: Client, server: FakeServer) -> None:
    begin_and_lose(client, server, Away.WAIT)
    invalidating = client.begin("invalidate diverged")
    server.do_now(lambda: server.restart(incarnation=4))
    assert invalidating() == "ok"
    assert [it.reason for it in server.invalidated] == ["diverged"]
