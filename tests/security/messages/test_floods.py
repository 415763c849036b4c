"""Strangers, and holders of a key, who flood the ports of a study: it goes on, and lets its own clients in."""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from stream_server.client_api import connect
from stream_server.launcher.simulations.remote_access import RemoteAccess
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.messages import launcher_link, wire
from stream_server.messages.client import Hello, TimeSteps
from stream_server.messages.curve import KeyPair, secure_client_socket, secure_peer_socket
from stream_server.server.reception.coordinator import Coordinator
from stream_server.server.reception.dispatcher import Dispatcher
from stream_server.server.reception.heartbeat import Heartbeat
from tests.faults.resources.victim import NUM_SIMULATIONS, limited, victim
from tests.support.reception import DEADLINE_S, STUDY, Crew, StudyShape, reception
from tests.support.timing import until

LIMIT = 512
NUM_STRANGERS = 5000
AT_ONCE = 50
NUM_UNKNOWN = 2000
NUM_AT_LAUNCHER = 100
# The signature with which ZMTP begins.
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
NUM_STEPS = 400


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may open the sockets of all strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NUM_STRANGERS + LIMIT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rank_outlives_five_thousand_strangers_and_serves_its_clients_meanwhile(
    tmp_path: Path, many_files: None
) -> None:
    with victim(within=limited("-n", LIMIT)) as it:
        num_own = it.num_files
        far = tmp_path / "far.json"
        replace(it.connection, host="another node").write(far)
        with ExitStack() as stack:
            for number in range(NUM_STRANGERS):
                if number % AT_ONCE == 0:
                    # With so low a limit a rank bears no more at once than it has descriptors to spare: libzmq ends a
                    # process that has none left for a client on the same node.
                    until(lambda: it.num_files < LIMIT - 2 * AT_ONCE)
                stranger = stack.enter_context(socket.create_connection(it.port if number % 2 else it.data_port))
                stranger.send(SIGNATURE)
            it.simulate(0)
            # One over TCP, as from another node.
            it.simulate(1, file=far)
            assert it.num_files < LIMIT
        until(lambda: it.num_files <= num_own + 4)
        it.simulate(*range(2, NUM_SIMULATIONS))
        it.end()


def test_thousands_of_keys_that_a_rank_does_not_know_keep_nobody_out(tmp_path: Path, many_files: None) -> None:
    """Each of them costs it a whole handshake; they know the key of the server, which is no secret."""
    with victim() as it, zmq.Context() as context:
        num_own, far, security = it.num_files, tmp_path / "far.json", it.connection.security
        assert security is not None
        replace(it.connection, host="another node").write(far)
        context.max_sockets = NUM_UNKNOWN + 1
        with ExitStack() as stack:
            for number in range(NUM_UNKNOWN):
                stranger = stack.enter_context(context.socket(zmq.DEALER))
                public, secret = zmq.curve_keypair()
                own = {"client_public_key": public.decode(), "client_secret_key": secret.decode()}
                secure_client_socket(stranger, replace(security, **own))
                stranger.linger, stranger.reconnect_ivl = 0, 1
                stranger.connect("tcp://{}:{}".format(*(it.port if number % 2 else it.data_port)))
            it.simulate(0, file=far)
            assert it.num_files < num_own + NUM_UNKNOWN // 2
        it.simulate(*range(1, NUM_SIMULATIONS))
        it.end()


@pytest.mark.parametrize("to", ["control", "data"])
def test_who_floods_a_rank_with_hellos_is_cut_off_and_not_answered_for_a_while_and_others_are_served(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bytes] = []
    with (
        reception(StudyShape(num_simulations=2, time_steps=TimeSteps(num=NUM_STEPS), secure=True)) as study,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as flooder,
    ):
        room = Coordinator if to == "control" else Dispatcher
        hear = room.hear

        def counted(self: Any, peer: bytes, header: bytes, *rest: Any) -> None:
            if header == hello:
                answered.append(peer)
            hear(self, peer, header, *rest)

        monkeypatch.setattr(room, "hear", counted)
        key = KeyPair.make()
        study.launch(1, key=key)
        [frame] = wire.encode(Hello(study=STUDY, simulation=1, attempt=0, rank=0, num_ranks=1))
        hello = bytes(frame)
        flooder.linger = 0
        flooder.curve_serverkey = study.keys.public.encode()
        flooder.curve_publickey, flooder.curve_secretkey = key.public.encode(), key.secret.encode()
        events = flooder.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        flooder.connect(getattr(study.endpoints[0], to)[1])
        is_over = threading.Event()

        def flood() -> None:
            while not is_over.is_set():
                if flooder.poll(100, zmq.POLLOUT):
                    with suppress(zmq.Again):
                        flooder.send(hello, zmq.NOBLOCK)
                # Whoever does not read is held back by libzmq, and does not see that he was cut off.
                while flooder.poll(0):
                    flooder.recv_multipart()

        crew = Crew()
        crew.start(flood)
        try:
            until(lambda: events.poll(0), limit_s=20)
            num_before = len(answered)
            assert num_before
            own = study.launch(0, key=KeyPair.make())
            crew.start(lambda: [study.first.draw() for _ in range(NUM_STEPS)])
            with connect(own, timeout_s=DEADLINE_S) as run:
                for step in range(NUM_STEPS):
                    assert run.send(step, u=np.zeros(4))
        finally:
            is_over.set()
            crew.join()
            flooder.disable_monitor()
            events.close()
    assert len(answered) - num_before < NUM_STEPS


@pytest.fixture
def access() -> RemoteAccess:
    return RemoteAccess(address="127.0.0.1", ports=None, keys=KeyPair.make(), max_connections=8)


def flood(stack: ExitStack, place: str) -> Callable[[], int]:
    """Strangers at a port of a launcher, who begin a handshake and stay; how many of them have been cut off so far."""
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    strangers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(NUM_AT_LAUNCHER)]
    for stranger in strangers:
        stranger.setblocking(False)
        with suppress(OSError):
            stranger.send(SIGNATURE)

    def is_cut(stranger: socket.socket) -> bool:
        try:
            while stranger.recv(1024):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    return lambda: sum(map(is_cut, strangers))


def test_the_link_of_a_launcher_keeps_few_strangers_and_hears_rank_0_among_them(
    tmp_path: Path, access: RemoteAccess
) -> None:
    here = launcher_link.Rank0Alive(incarnation=1)
    with (
        ServerConnection(f"ipc://{tmp_path}/link", access) as launcher,
        ExitStack() as stack,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as rank_0,
    ):
        num_cut = flood(stack, launcher.endpoint)
        until(lambda: num_cut() >= NUM_AT_LAUNCHER - access.max_connections)
        rank_0.linger = 0
        secure_peer_socket(rank_0, access.keys)
        rank_0.connect(launcher.endpoint)
        rank_0.send(launcher_link.encode(here))

        def hears() -> list[launcher_link.ToLauncher]:
            launcher.wait(0.01)
            return launcher.receive()

        assert until(hears) == [here]


def test_a_launcher_sees_that_a_rank_lives_among_many_strangers(tmp_path: Path, access: RemoteAccess) -> None:
    with ExitStack() as stack:
        liveness = stack.enter_context(LivenessSocket(f"ipc://{tmp_path}/alive", num_ranks=1, remote=access))
        num_cut = flood(stack, liveness.endpoint)
        until(lambda: num_cut() >= NUM_AT_LAUNCHER - access.max_connections)
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(Heartbeat(liveness.endpoint, 0, access.keys).__enter__)

            def lives() -> bool:
                liveness.take(time.monotonic())
                return liveness.has_all_ranks

            until(lives)
            leaving = thread.submit(coming.result().__exit__, None, None, None)
            until(lambda: lives() and leaving.done())
