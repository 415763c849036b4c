"""Which ranks live, seen from outside: real processes, and heartbeats that are quicker than in earnest."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stream_server.errors import ConfigError, RankLost
from stream_server.launcher.simulations.remote_access import RemoteAccess
from stream_server.launcher.supervision.liveness import LivenessSettings, LivenessSocket, RankLiveness
from stream_server.messages.curve import KeyPair
from stream_server.server.reception.heartbeat import Heartbeat
from tests.faults.network.faults import CLEAR, Reset
from tests.faults.network.proxy import Proxy

QUICK = LivenessSettings(interval_s=0.1, silent_s=2.0, return_s=1.0)
# Sums of these are exact.
EXACT = LivenessSettings(interval_s=1.0, silent_s=8.0, return_s=4.0)
LONG_S = 2 * QUICK.silent_s
DEADLINE_S = 60.0

RANK = """
import ctypes, sys
from stream_server.server.reception.heartbeat import Heartbeat
address, rank, action = sys.argv[1:]
with Heartbeat(address, int(rank)):
    if action == "hold":
        # A PyDLL keeps the interpreter's lock: no other Python code of this process runs meanwhile.
        sys.stdin.readline()
        ctypes.PyDLL(None).usleep(int(SECONDS * 1e6))
        print("held", flush=True)
    sys.stdin.readline()
print("left", flush=True)
sys.stdin.readline()
"""


class Rank:
    """A process that shows that it lives, in the way of a rank of the server."""

    def __init__(self, address: str, rank: int, action: str = "live") -> None:
        code = RANK.replace("SECONDS", str(LONG_S))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, address, str(rank), action],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{Path(folder) / 'alive'}"


def watch(liveness: LivenessSocket, until: Callable[[], bool], limit_s: float = DEADLINE_S) -> bool:
    """Look on until something is so; whether it came to that."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        liveness.take(time.monotonic())
        if until():
            return True
        liveness.sockets[0].poll(10)
    return False


def is_lost(liveness: LivenessSocket) -> Callable[[], bool]:
    return lambda: bool(liveness.ranks.lost)


def test_ranks_that_live_are_never_lost_and_are_known_by_their_processes(address: str) -> None:
    with (
        LivenessSocket(address, num_ranks=2, heartbeat=QUICK) as liveness,
        Rank(address, 0) as zero,
        Rank(address, 1) as one,
    ):
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        assert not watch(liveness, is_lost(liveness), LONG_S)
        pids = {rank: it.pid for rank, it in liveness.processes.items()}
        assert pids == {0: zero.process.pid, 1: one.process.pid}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_killed_is_lost(address: str, number: signal.Signals) -> None:
    with LivenessSocket(address, num_ranks=2, heartbeat=QUICK) as liveness, Rank(address, 0), Rank(address, 1) as one:
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        one.process.send_signal(number)
        assert watch(liveness, is_lost(liveness))
        assert liveness.ranks.lost == {1}


def test_a_rank_that_holds_the_interpreter_is_not_lost(address: str) -> None:
    with LivenessSocket(address, num_ranks=1, heartbeat=QUICK) as liveness, Rank(address, 0, "hold") as rank:
        assert watch(liveness, lambda: len(liveness.processes) == 1)
        rank.go_on()
        assert not watch(liveness, is_lost(liveness), LONG_S)
        rank.wait_for("held")


def test_a_rank_that_leaves_in_order_is_not_lost(address: str) -> None:
    with LivenessSocket(address, num_ranks=2, heartbeat=QUICK) as liveness, Rank(address, 0), Rank(address, 1) as one:
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        one.go_on()
        one.wait_for("left")
        assert not watch(liveness, is_lost(liveness), LONG_S)
        assert liveness.ranks.left == {1}


def test_a_rank_that_was_stopped_for_a_moment_comes_back(address: str) -> None:
    patient = LivenessSettings(interval_s=0.1, silent_s=6.0)
    with LivenessSocket(address, num_ranks=1, heartbeat=patient) as liveness, Rank(address, 0) as rank:
        assert watch(liveness, lambda: len(liveness.processes) == 1)
        rank.process.send_signal(signal.SIGSTOP)
        assert not watch(liveness, is_lost(liveness), QUICK.silent_s)
        rank.process.send_signal(signal.SIGCONT)
        assert not watch(liveness, is_lost(liveness), patient.silent_s)


def test_the_next_launcher_misses_the_ranks_of_a_server_that_it_did_not_start(address: str) -> None:
    with Rank(address, 0), Rank(address, 1) as one:
        with LivenessSocket(address, num_ranks=2, heartbeat=QUICK) as first:
            assert watch(first, lambda: len(first.processes) == 2)
        with LivenessSocket(address, num_ranks=2, heartbeat=QUICK) as second:
            second.ranks.expect_all()
            assert watch(second, lambda: second.has_all_ranks)
            assert second.processes == {}
            os.kill(one.process.pid, signal.SIGSTOP)
            assert watch(second, is_lost(second))


@pytest.mark.parametrize("name", [b"", b"rank-", b"rank-x", b"rank--1", b"rank-1", b"rank-" + b"9" * 200, b"\xff"])
def test_whoever_has_not_the_name_of_a_rank_is_passed_over(address: str, name: bytes) -> None:
    with LivenessSocket(address, num_ranks=1, heartbeat=QUICK) as liveness:
        _say(address, name, b'{"pid": 1}')
        assert liveness.sockets[0].poll(5000)
        liveness.take(time.monotonic())
        assert liveness.ranks.known == set()


@pytest.mark.parametrize("frame", [b"", b"\xff", b"[]", b"{}", b'{"pid": "x"}', b'{"pid": true}', b"[" * 4000])
def test_what_is_no_word_of_a_rank_is_passed_over(address: str, frame: bytes) -> None:
    with LivenessSocket(address, num_ranks=1, heartbeat=QUICK) as liveness:
        _say(address, b"rank-0", frame)
        assert liveness.sockets[0].poll(5000)
        liveness.take(time.monotonic())
        assert liveness.processes == {}


def _say(address: str, name: bytes, frame: bytes) -> None:
    say = f"import zmq; c = zmq.Context(); s = c.socket(zmq.DEALER); s.routing_id = {name!r} or b'x'"
    say += f"; s.connect({address!r}); s.send({frame!r}); s.close(5000); c.term()"
    subprocess.run([sys.executable, "-c", say], check=True)


def test_a_rank_that_does_not_answer_is_lost_and_others_are_not() -> None:
    ranks = RankLiveness(3, EXACT)
    for rank in (0, 1):
        ranks.heard(rank)
    for second in range(8):
        ranks.tick(second)
        ranks.heard(0)
        assert not ranks.lost
    ranks.tick(8)
    assert ranks.lost == {1}
    ranks.leave(1)
    assert not ranks.lost


def test_a_rank_without_a_connection_is_lost_sooner_unless_it_comes_back() -> None:
    ranks = RankLiveness(2, EXACT)
    for rank in (0, 1):
        ranks.heard(rank)
    ranks.tick(0.0)
    for rank in (0, 1):
        ranks.is_broken(rank)
    for second in (1, 2, 3, 4):
        ranks.tick(second)
        ranks.is_broken(0)
        ranks.heard(1)
    assert ranks.lost == {0}


def test_time_for_which_the_launcher_was_stopped_is_not_held_against_ranks() -> None:
    ranks = RankLiveness(1, EXACT)
    ranks.heard(0)
    ranks.tick(0.0)
    ranks.tick(1000.0)
    assert not ranks.lost


def test_all_ranks_of_a_server_that_was_taken_over_must_come_back() -> None:
    ranks = RankLiveness(2, EXACT)
    ranks.expect_all()
    for second in range(10):
        ranks.tick(second)
        ranks.heard(1)
    assert ranks.lost == {0}
    ranks.heard(0)
    assert not ranks.lost


def test_of_a_server_that_starts_nobody_is_expected_before_it_has_come() -> None:
    ranks = RankLiveness(2, EXACT)
    for second in range(20):
        ranks.tick(second)
    assert not ranks.lost


@pytest.fixture
def access() -> RemoteAccess:
    return RemoteAccess(address="127.0.0.1", ports=None, keys=KeyPair.make(), max_connections=8)


def test_a_rank_on_another_node_lives_and_is_lost_over_tcp(address: str, access: RemoteAccess) -> None:
    with LivenessSocket(address, num_ranks=2, heartbeat=QUICK, remote=access) as liveness:
        ranks = ExitStack()
        for heartbeat in (Heartbeat(address, 0), Heartbeat(liveness.endpoint, 1, access.keys)):
            ranks.enter_context(heartbeat)
        assert watch(liveness, lambda: liveness.has_all_ranks)
        # That of another node may be anybody's here.
        assert liveness.processes.keys() == {0}
        assert not watch(liveness, is_lost(liveness), LONG_S)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(ranks.close)
            assert watch(liveness, lambda: liveness.ranks.left == {0, 1})


def test_a_rank_that_loses_its_connection_over_tcp_is_back_at_once(address: str, access: RemoteAccess) -> None:
    # The first connection is the question whether there is anybody.
    course = [CLEAR, Reset(after_bytes=2000)]
    with (
        LivenessSocket(address, num_ranks=1, heartbeat=QUICK, remote=access) as liveness,
        Proxy(liveness.endpoint, course) as proxy,
        Heartbeat(proxy.address, 0, access.keys),
    ):
        assert watch(liveness, lambda: liveness.has_all_ranks)
        assert watch(liveness, lambda: proxy.struck["Reset"] == 1)
        assert watch(liveness, lambda: proxy.num_connections == 3)
        assert not watch(liveness, is_lost(liveness), LONG_S)


def test_strangers_on_tcp_are_no_ranks(address: str, access: RemoteAccess) -> None:
    with LivenessSocket(address, num_ranks=1, heartbeat=QUICK, remote=access) as liveness:
        host, _, port = liveness.endpoint.removeprefix("tcp://").rpartition(":")
        with Heartbeat(address, 0):
            assert watch(liveness, lambda: liveness.has_all_ranks)
            with Heartbeat(liveness.endpoint, 0, KeyPair.make()):
                socket.create_connection((host, int(port))).close()
                assert not watch(liveness, is_lost(liveness), LONG_S)
            assert liveness.ranks.left == set()


def test_the_next_launcher_is_at_the_place_of_the_one_before(address: str, access: RemoteAccess) -> None:
    with ExitStack() as launcher, ExitStack() as rank:
        first = launcher.enter_context(LivenessSocket(address, num_ranks=1, heartbeat=QUICK, remote=access))
        rank.enter_context(Heartbeat(first.endpoint, 0, access.keys))
        assert watch(first, lambda: first.has_all_ranks)
        launcher.close()
        with LivenessSocket(address, num_ranks=1, heartbeat=QUICK, remote=access, before=first.endpoint) as second:
            second.ranks.expect_all()
            assert second.endpoint == first.endpoint
            assert watch(second, lambda: second.has_all_ranks)


def test_a_rank_that_cannot_reach_the_launcher_says_so(address: str) -> None:
    with pytest.raises(ConfigError, match=r"Write network\.interface"), Heartbeat(address, 3):
        pass
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RankLost, match="cannot be reached at tcp://127"), Heartbeat(place, 3, KeyPair.make()):
        pass
