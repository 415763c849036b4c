"""Clients that name numbers beyond all bounds, and holders of a key whose messages never end."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zmq

from stream_server.client_api import connect
from stream_server.machine.processes import PROC
from stream_server.messages import wire
from stream_server.messages.client import Ack, Hello, Opened, Ping, Refusal, TimeSteps
from stream_server.messages.curve import KeyPair
from tests.faults.network.faults import Slow
from tests.faults.network.proxy import Proxy
from tests.server.reception.test_receiver import data, opening, value, welcome
from tests.support.reception import DEADLINE_S, STUDY, Crew, RawClient, StudyShape, reception
from tests.support.timing import until

LARGEST = 2**63 - 1
MOST_BYTES = 64 << 20
NUM_STEPS = 100
SIZES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a dimension": lambda it: it["blocks"][0].update(shape=[LARGEST], count=[LARGEST]),
    "beyond 64 bits": lambda it: it["blocks"][0].update(shape=[10**400], count=[10**400]),
    "their product": lambda it: it["blocks"][0].update(shape=[2**21] * 3, offset=[0] * 3, count=[2**21] * 3),
    "as many as allowed": lambda it: it["blocks"][0].update(shape=[2**59], count=[2**59]),
    "very many": lambda it: it["blocks"][0].update(shape=[1] * 10_000, offset=[0] * 10_000, count=[1] * 10_000),
    "an offset": lambda it: it["blocks"][0].update(offset=[LARGEST]),
    "ranks": lambda it: it.update(num_ranks=2**31),
    "a simulation": lambda it: it.update(simulation=LARGEST),
    "an attempt": lambda it: it.update(attempt=LARGEST),
    "blocks": lambda it: it.update(blocks=it["blocks"] * 10_000),
}
# Places in the header of Data (docs/reference/protocol.md): all 64 bits of a number are set.
HEADER_BYTES = 8
NUMBERS = tuple(range(HEADER_BYTES, wire.DATA.size - 7, 4))


def peak_bytes() -> int:
    lines = (PROC / "self" / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("change", SIZES.values(), ids=SIZES)
def test_an_opening_with_huge_numbers_is_refused_and_costs_nothing(change: Callable[[dict[str, Any]], Any]) -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            [frame] = wire.encode(opening())
            message = json.loads(bytes(frame))
            change(message)
            before = peak_bytes()
            client.socket.send(json.dumps(message).encode())
            assert isinstance(client.hear(), Refusal)
            assert peak_bytes() < before + MOST_BYTES
            # Nothing of it has stayed.
            assert isinstance(client.ask(opening()), Opened)


def test_huge_numbers_in_the_header_of_a_step_are_refused_and_cost_nothing() -> None:
    payload = value(0, 0).tobytes()
    with reception(StudyShape()) as study:
        welcome(study)
        [header, *_] = wire.encode(data(0, 0), [payload])
        before = peak_bytes()
        for at in NUMBERS:
            # A peer of its own, since a refused message is counted.
            with RawClient(study.endpoints[0].data[0]) as client:
                assert isinstance(client.ask(opening()), Opened)
                forged = bytearray(bytes(header))
                struct.pack_into("<Q", forged, at, 2**64 - 1)
                client.socket.send_multipart([bytes(forged), payload])
                answer = client.hear()
                assert isinstance(answer, Refusal), f"all bits from byte {at} on"
        assert peak_bytes() < before + MOST_BYTES
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            client.say(data(0, 0), [payload])
            until(lambda: isinstance(answer := client.ask(Ping()), Ack) and answer.received == 1)
        assert study.first.receiver.account().intake[0].accepted == 1


@pytest.mark.parametrize("to", ["control", "data"])
def test_whoever_has_a_key_and_sends_byte_by_byte_holds_nobody_up(to: str) -> None:
    shape = StudyShape(num_simulations=2, time_steps=TimeSteps(num=NUM_STEPS), secure=True)
    with reception(shape) as study, zmq.Context() as context, context.socket(zmq.DEALER) as slow:
        key, own = KeyPair.make(), KeyPair.make()
        study.launch(1, key=key)
        connection = study.launch(0, key=own)
        # Fast through the handshake, whose five seconds are another limit, and then a byte at a time.
        with Proxy(getattr(study.endpoints[0], to)[1], [Slow(bytes_per_s=2000, piece_bytes=1)]) as proxy:
            slow.linger = 0
            slow.curve_serverkey = study.keys.public.encode()
            slow.curve_publickey, slow.curve_secretkey = key.public.encode(), key.secret.encode()
            [hello] = wire.encode(Hello(study=STUDY, simulation=1, attempt=0, rank=0, num_ranks=1))
            slow.connect(proxy.address)
            # It is in, and known by its key; then comes a message that takes minutes.
            slow.send(bytes(hello))
            assert slow.poll(30_000)
            slow.recv_multipart()
            slow.send(bytes(500_000))
            crew = Crew()
            crew.start(lambda: [study.first.draw() for _ in range(NUM_STEPS)])
            with connect(connection, timeout_s=DEADLINE_S) as run:
                for step in range(NUM_STEPS):
                    assert run.send(step, u=np.zeros(4))
            crew.join()
            assert not slow.poll(0)
