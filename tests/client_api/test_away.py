"""The behaviour of a simulation while the server does not answer: the study's `client.if_server_away`."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stream_server.client_api import connect, session, watch
from stream_server.client_api.simulation import Simulation
from stream_server.errors import SimulationError, Unreachable
from stream_server.messages.client import Away, Data, End
from tests.client_api.test_restart import SMALL, TINY, assert_has, messages, send
from tests.support.fake_server import FakeServer

TIMEOUT_S = 0.5
FIRST = range(3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.02)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        yield server


def begin(server: FakeServer, policy: Away, *, wait_s: float = 20.0) -> Simulation:
    server.if_server_away, server.wait_s = policy, wait_s
    simulation = connect(server.path, timeout_s=TIMEOUT_S)
    assert send(simulation, *FIRST) == [True] * 3
    return simulation


def begin_and_lose(server: FakeServer, policy: Away, *, wait_s: float = 20.0) -> Simulation:
    simulation = begin(server, policy, wait_s=wait_s)
    server.do_now(server.die)
    return simulation


def test_stop_ends_the_simulation_as_soon_as_the_server_is_away(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.STOP)
    with pytest.raises(Unreachable, match=r"simulation 7 rank 0 waits for server rank \d .*: no word for 0\.5 s"):
        send(simulation, *range(3, 20))
    with pytest.raises(Unreachable):
        simulation.finish()


def test_wait_waits_for_a_server_that_comes_back_after_the_time_limit(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.WAIT)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, simulation, *range(3, 20))
        with pytest.raises(TimeoutError):
            sending.result(3 * TIMEOUT_S)
        server.do_now(lambda: server.restart(incarnation=4, known={0}))
        assert sending.result(100) == [True] * 17
        simulation.finish()
    assert_has(server, 20)


def test_wait_gives_up_after_its_time(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.WAIT, wait_s=1.0)
    with pytest.raises(Unreachable, match=r"no word for 1 s"):
        send(simulation, *range(3, 20))


def test_wait_never_gives_up_before_the_server_is_away(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.WAIT, wait_s=0.01)
    with pytest.raises(Unreachable, match=r"no word for 0\.5 s"):
        simulation.finish()


def touch(server: FakeServer, waiting: "Future[Any]") -> None:
    """Touch the connection file for longer than anything may wait that is not told to, while this waits."""
    for _ in range(20):
        os.utime(server.path)
        with pytest.raises(TimeoutError):
            waiting.result(TIMEOUT_S / 5)


def test_a_simulation_that_begins_while_no_server_is_there_waits_as_long_as_the_launcher_says_that_one_will_come(
    server: FakeServer,
) -> None:
    server.do_now(server.die)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(begin, server, Away.WAIT)
        touch(server, entering)
        server.do_now(lambda: server.restart(incarnation=4))
        with entering.result(100) as simulation:
            send(simulation, *range(3, 20))
    assert_has(server, 20)


def test_wait_waits_as_long_as_the_launcher_says_that_a_server_will_come(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.WAIT, wait_s=TIMEOUT_S)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, simulation, *range(3, 20))
        touch(server, sending)
        with pytest.raises(Unreachable, match=r"no word for 0\.5 s"):
            sending.result(100)


def test_stop_does_not_wait_though_the_launcher_says_that_a_server_will_come(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.STOP)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, simulation, *range(3, 20))
        while not sending.done():
            os.utime(server.path)
        with pytest.raises(Unreachable):
            sending.result()


def test_continue_goes_on_without_the_server_and_says_so_at_the_end(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation = begin_and_lose(server, Away.CONTINUE)
    assert send(simulation, *range(3, 200)) == [True] * 197
    simulation.finish()
    simulation.finish()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("simulation 7 rank 0: the server of study heat/1 is away.")
    assert "a new attempt will produce what is missing" in line


def test_continue_leaves_when_the_server_goes_away_at_the_end(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with begin_and_lose(server, Away.CONTINUE):
        pass
    assert "is away" in capsys.readouterr().err


def test_continue_takes_part_again_when_the_server_comes_back(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with begin_and_lose(server, Away.CONTINUE) as simulation:
        send(simulation, *range(3, 50))
        server.do_now(lambda: server.restart(incarnation=4, known={1}, num_ranks=3))
        send(simulation, *range(50, 60))
    assert_has(server, 60)
    assert capsys.readouterr().err == ""


def test_continue_looks_for_a_new_server_once_more_at_the_end(server: FakeServer) -> None:
    with begin_and_lose(server, Away.CONTINUE) as simulation:
        send(simulation, *range(3, 50))
        server.do_now(lambda: server.restart(incarnation=4))
    assert_has(server, 50)


def test_continue_holds_no_more_than_the_window_and_stays_without_a_server_that_needs_more(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.window_bytes = 10_000
    with begin_and_lose(server, Away.CONTINUE) as simulation:
        send(simulation, *range(3, 100))
        retention = simulation._session._retention  # type: ignore[attr-defined]
        assert 5_000 < retention.num_bytes <= 10_000
        server.do_now(lambda: server.restart(incarnation=4))
        assert send(simulation, *range(100, 120)) == [True] * 20
    assert messages(server, Data) + messages(server, End) == []
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_continue_does_not_wait_again_for_a_new_server_that_did_not_answer(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = begin_and_lose(server, Away.CONTINUE)
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    send(simulation, *range(3, 50))

    def restart_silent() -> None:
        server.silent = True
        server.restart(incarnation=4)

    server.do_now(restart_silent)
    assert send(simulation, *range(50, 100)) == [True] * 50
    assert len(server.hellos) == 2
    server.do_now(lambda: setattr(server, "silent", False))
    server.move(incarnation=5)
    simulation.finish()
    assert_has(server, 100)


def test_continue_goes_on_though_it_never_spoke_to_a_server_rank(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.if_server_away = Away.CONTINUE
    with connect(server.path, timeout_s=TIMEOUT_S) as simulation:
        server.do_now(server.die)
        assert simulation.send(0, u=TINY)
        assert simulation.send(1, u=TINY)
    assert "is away" in capsys.readouterr().err


def test_continue_still_tells_a_mistake_where_it_is_made(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.CONTINUE)
    send(simulation, *range(3, 50))
    with pytest.raises(ValueError, match="shape"):
        simulation.send(50, u=np.zeros(3))
    simulation.finish()


@pytest.mark.parametrize("policy", [Away.STOP, Away.WAIT])
def test_a_simulation_that_cannot_be_invalidated_ends(server: FakeServer, policy: Away) -> None:
    simulation = begin_and_lose(server, policy, wait_s=0.7)
    with pytest.raises(SimulationError, match="no word"):
        simulation.invalidate("diverged")


def test_continue_does_not_insist_on_being_invalidated(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    simulation = begin_and_lose(server, Away.CONTINUE)
    simulation.invalidate("diverged")
    assert send(simulation, 3) == [False]
    assert "is away" in capsys.readouterr().err


def test_a_restarted_server_hears_of_an_invalid_simulation(server: FakeServer) -> None:
    simulation = begin_and_lose(server, Away.WAIT)
    with ThreadPoolExecutor(1) as pool:
        invalidating = pool.submit(simulation.invalidate, "diverged")
        server.do_now(lambda: server.restart(incarnation=4))
        invalidating.result(100)
    assert [it.reason for it in server.invalidated] == ["diverged"]
