"""A network of IPv6 alone, between this node and another."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.doctor.checks import Severity, check_ports
from stream_server.launcher.simulations.remote_access import RemoteAccess
from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.machine.network import chosen
from stream_server.messages.client import FieldSpec, TimeSteps
from stream_server.messages.curve import KeyPair
from stream_server.messages.tcp import ANYWHERE
from stream_server.server.intake import mailbox
from stream_server.server.reception.heartbeat import Heartbeat
from tests.faults.network.node import Node
from tests.launcher.supervision.test_liveness import LONG_S, QUICK, is_lost, watch
from tests.native.conformance.script import Driver
from tests.native.native_client import library, program
from tests.support.reception import Crew, StudyShape, reception

__all__ = ["library", "program"]

NUM_STEPS = 6
# What a reception with keys calls its first rank.
NAME = "node-0"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(ipv6=True, name=NAME) as node:
        yield node


def test_an_interface_of_ipv6_is_known_by_its_name_its_address_and_its_subnet(node: Node) -> None:
    found = chosen(node.here)
    assert chosen(found.name) == chosen(f"{node.here}/64") == found


def test_a_rank_reaches_its_launcher_over_ipv6(node: Node, tmp_path: Path) -> None:
    access = RemoteAccess(address=node.here, ports=None, keys=KeyPair.make(), max_connections=8)
    with LivenessSocket(f"ipc://{tmp_path / 'l'}", num_ranks=1, heartbeat=QUICK, remote=access) as liveness:
        assert liveness.endpoint.startswith(f"tcp://[{node.here}]:")
        with Heartbeat(liveness.endpoint, 0, access.keys):
            assert watch(liveness, lambda: liveness.has_all_ranks)
            assert not watch(liveness, is_lost(liveness), LONG_S)


def test_the_doctor_reaches_a_host_that_has_ipv6_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: node.here)
    assert check_ports().severity is Severity.GOOD


@pytest.mark.parametrize("client", ["python", "c"])
@pytest.mark.parametrize("by", ["address", "name"])
def test_a_simulation_reaches_its_server_over_ipv6(
    node: Node, tmp_path: Path, client: str, by: str, request: pytest.FixtureRequest
) -> None:
    words = [sys.executable, "-m", "tests.native.conformance.driver"]
    if client == "c":
        words = [str(request.getfixturevalue("program"))]
    shape = StudyShape(
        secure=True,
        fields=(FieldSpec(name="u", shape=(4,), dtype="<f8"),),
        time_steps=TimeSteps(num=NUM_STEPS),
        # Only the node knows the name.
        num_ranks=2 if by == "address" else 1,
        address=node.here if by == "address" else ANYWHERE,
    )
    with reception(shape) as study, Driver(node.command(*words)) as driver:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        path = tmp_path / "connection.json"
        file = study.launch(0, key=KeyPair.make())
        file.write(path)
        assert file.control[1].startswith(f"tcp://[{node.here}]:" if by == "address" else f"tcp://{NAME}:")
        driver.say(f"connect 0 1 connection={path} timeout=20")
        assert driver.hear().startswith("ok")
        for step in range(NUM_STEPS):
            driver.say(f"put u float64 4 {step}")
            driver.say(f"send {step}")
            assert [driver.hear(), driver.hear()] == ["staged", "ok"]
        driver.say("finish")
        assert driver.hear() == "ok"
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(key for rank in study.ranks for key in rank.drawn) == [(0, i) for i in range(NUM_STEPS)]
