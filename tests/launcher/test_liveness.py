"""Which ranks live, seen from outside: real processes, and heartbeats that are quicker than in earnest."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stream_server.launcher.supervision.liveness import HeartbeatSettings, Liveness, Presence

QUICK = HeartbeatSettings(interval_s=0.1, answer_s=0.4, return_s=0.4)
LONG_S = 3 * (QUICK.interval_s + QUICK.answer_s + QUICK.return_s)
DEADLINE_S = 60.0

RANK = """
import ctypes, json, os, sys, time, zmq
address, rank, action = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(address)
socket.send(json.dumps({"rank": int(rank), "pid": os.getpid()}).encode())
if action == "hold":
    # A PyDLL keeps the interpreter's lock: no other Python code of this process runs meanwhile.
    sys.stdin.readline()
    ctypes.PyDLL(None).usleep(int(SECONDS * 1e6))
    print("held", flush=True)
sys.stdin.readline()
socket.send(json.dumps({"rank": int(rank), "leaving": True}).encode())
socket.close(linger=5000)
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


def watch(liveness: Liveness, until: Callable[[], bool], limit_s: float = DEADLINE_S) -> bool:
    """Look on until something is so; whether it came to that."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        liveness.take(time.monotonic())
        if until():
            return True
        liveness.sockets[1].poll(10)
    return False


def is_lost(liveness: Liveness) -> Callable[[], bool]:
    return lambda: liveness.is_lost(time.monotonic())


def test_ranks_that_live_are_never_lost_and_are_known_by_their_processes(address: str) -> None:
    with Liveness(address, num_ranks=2, heartbeat=QUICK) as liveness, Rank(address, 0) as zero, Rank(address, 1) as one:
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        assert not watch(liveness, is_lost(liveness), LONG_S)
        pids = {rank: it.pid for rank, it in liveness.processes.items()}
        assert pids == {0: zero.process.pid, 1: one.process.pid}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_killed_is_lost(address: str, number: signal.Signals) -> None:
    with Liveness(address, num_ranks=2, heartbeat=QUICK) as liveness, Rank(address, 0), Rank(address, 1) as one:
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        one.process.send_signal(number)
        assert watch(liveness, is_lost(liveness))


def test_a_rank_that_holds_the_interpreter_is_not_lost(address: str) -> None:
    with Liveness(address, num_ranks=1, heartbeat=QUICK) as liveness, Rank(address, 0, "hold") as rank:
        assert watch(liveness, lambda: len(liveness.processes) == 1)
        rank.go_on()
        assert not watch(liveness, is_lost(liveness), LONG_S)
        rank.wait_for("held")


def test_a_rank_that_leaves_in_order_is_not_lost(address: str) -> None:
    with Liveness(address, num_ranks=2, heartbeat=QUICK) as liveness, Rank(address, 0), Rank(address, 1) as one:
        assert watch(liveness, lambda: len(liveness.processes) == 2)
        one.go_on()
        one.wait_for("left")
        assert not watch(liveness, is_lost(liveness), LONG_S)
        assert liveness.presence.left == {1}


def test_a_rank_that_was_stopped_for_a_moment_comes_back(address: str) -> None:
    patient = HeartbeatSettings(interval_s=0.1, answer_s=0.3, return_s=10.0)
    with Liveness(address, num_ranks=1, heartbeat=patient) as liveness, Rank(address, 0) as rank:
        assert watch(liveness, lambda: len(liveness.processes) == 1)
        rank.process.send_signal(signal.SIGSTOP)
        assert watch(liveness, lambda: liveness.presence.num_missed(time.monotonic()) == 1)
        rank.process.send_signal(signal.SIGCONT)
        assert watch(liveness, lambda: liveness.presence.num_missed(time.monotonic()) == 0)
        assert not liveness.is_lost(time.monotonic())


def test_the_next_launcher_misses_the_ranks_of_a_server_that_it_did_not_start(address: str) -> None:
    with Rank(address, 0), Rank(address, 1) as one:
        with Liveness(address, num_ranks=2, heartbeat=QUICK) as first:
            assert watch(first, lambda: len(first.processes) == 2)
        with Liveness(address, num_ranks=2, heartbeat=QUICK) as second:
            assert watch(second, lambda: len(second.presence.open) == 2)
            assert second.processes == {}
            os.kill(one.process.pid, signal.SIGSTOP)
            assert watch(second, is_lost(second))


@pytest.mark.parametrize("frame", [b"", b"\xff", b"[]", b"{}", b'{"rank": "x"}', b'{"rank": 0, "pid": "x"}'])
def test_what_is_no_word_of_a_rank_is_passed_over(address: str, frame: bytes) -> None:
    say = f"import zmq; c = zmq.Context(); s = c.socket(zmq.DEALER); s.connect({address!r}); s.send({frame!r})"
    say += "; s.close(5000); c.term()"
    with Liveness(address, num_ranks=1, heartbeat=QUICK) as liveness:
        subprocess.run([sys.executable, "-c", say], check=True)
        assert liveness.sockets[0].poll(5000)
        liveness.take(time.monotonic())
        assert liveness.presence.known == set()


def test_connections_are_counted_against_the_ranks_that_were_heard_of() -> None:
    presence = Presence(3)
    for connection in (7, 8, 9):
        presence.opened(connection)
        presence.come(connection - 7)
    assert presence.missed_since(1.0) == float("inf")
    presence.closed(8)
    assert (presence.num_missed(2.0), presence.missed_since(2.0), presence.missed_since(3.0)) == (1, 2.0, 2.0)
    presence.opened(8)
    assert presence.missed_since(4.0) == float("inf")
    presence.leave(1)
    presence.closed(8)
    assert presence.num_missed(5.0) == 0


def test_more_connections_than_ranks_are_never_missed() -> None:
    presence = Presence(1)
    for connection in (7, 8, 9):
        presence.opened(connection)
    presence.closed(7)
    presence.closed(8)
    assert presence.num_missed(5.0) == 0


def test_all_ranks_of_a_server_that_was_taken_over_must_come_back() -> None:
    presence = Presence(2, all_at=10.0)
    presence.opened(4)
    assert presence.missed_since(9.0) == float("inf")
    assert presence.missed_since(10.0) == 10.0
    presence.opened(5)
    assert presence.missed_since(11.0) == float("inf")
