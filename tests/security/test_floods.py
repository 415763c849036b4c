"""Strangers, and holders of a key, who flood the ports of a study: it goes on, and lets its own clients in."""

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from stream_server.messages import wire
from stream_server.messages.client import Hello, TimeSteps
from stream_server.server.reception.coordinator import Coordinator
from stream_server.server.reception.dispatcher import Dispatcher
from stream_server.server.run.curve import KeyPair
from tests.resources.victim import NUM_SIMULATIONS, limited, victim
from tests.support.reception import STUDY, Crew, StudyShape, reception
from tests.support.timing import until

LIMIT = 512
NUM_STRANGERS = 5000
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
                stranger = stack.enter_context(socket.create_connection(it.port if number % 2 else it.data_port))
                stranger.send(SIGNATURE)
            # A client on the same node: libzmq ends a process that has no descriptor left for one.
            it.simulate(0)
            # One over TCP, as from another node.
            it.simulate(1, file=far)
            assert it.num_files < LIMIT
        until(lambda: it.num_files <= num_own + 4)
        it.simulate(*range(2, NUM_SIMULATIONS))
        it.end()


@pytest.mark.parametrize("to", ["control", "data"])
def test_who_floods_a_rank_with_hellos_is_cut_off_and_not_answered_for_a_while_and_others_are_served(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bytes] = []
    with (
        reception(StudyShape(num_simulations=2, time_steps=TimeSteps(num=NUM_STEPS))) as study,
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
        flooder.linger, flooder.rcvhwm = 0, 1
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

        crew = Crew()
        crew.start(flood)
        try:
            until(lambda: events.poll(0), limit_s=20)
            num_before = len(answered)
            study.launch(0)
            crew.start(lambda: [study.first.draw() for _ in range(NUM_STEPS)])
            with study.run(0) as run:
                for step in range(NUM_STEPS):
                    assert run.send(step, u=np.zeros(4))
        finally:
            is_over.set()
            crew.join()
            flooder.disable_monitor()
            events.close()
    assert len(answered) - num_before < NUM_STEPS
