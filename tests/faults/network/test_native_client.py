"""The C client behind the same proxies: they do not care who speaks."""

from pathlib import Path

import numpy as np
import pytest

from stream_server.messages.client import Data, FieldSpec, TimeSteps
from stream_server.server.intake import mailbox
from tests.client_api.clients import assert_has, messages, u
from tests.fakes.server import FakeServer
from tests.faults.network.crossing import crossing
from tests.faults.network.faults import CLEAR, Close, Fault, Flip, HalfOpen, Reset, Silence, Slow, Way
from tests.faults.network.proxy import LOOPBACK
from tests.faults.network.test_retained_steps import SMALL, lose_connections
from tests.native.native_client import NativeClient, client, library, program
from tests.support.reception import Crew, StudyShape

__all__ = ["client", "library", "program"]

NUM_STEPS = 60
COURSES: dict[str, tuple[Fault, ...]] = {
    "slow": (Slow(delay_s=0.002, jitter_s=0.002, piece_bytes=100),),
    "reset": (Reset(after_bytes=2500), CLEAR, Reset(after_bytes=400, way=Way.DOWN)),
    "closed": (Close(after_bytes=2500),),
    "half open until it heals": (HalfOpen(after_bytes=2500, heals_s=0.3),),
    "not answered until it heals": (Silence(after_bytes=400, way=Way.DOWN, heals_s=0.3),),
    "changed on the way": (Flip(at_byte=2500), CLEAR, Flip(at_byte=400, way=Way.DOWN)),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES.keys())
def test_whatever_breaks_the_c_client_sends_every_sample_once(
    client: NativeClient, tmp_path: Path, course: tuple[Fault, ...]
) -> None:
    field = FieldSpec(name="u", shape=(4,), dtype="<f8")
    shape = StudyShape(secure=True, fields=(field,), time_steps=TimeSteps(num=NUM_STEPS), num_ranks=2)
    with crossing(shape, data=(course,), control=course[:1]) as net:
        crew = Crew()
        for rank in net.study.ranks:
            crew.start(rank.drain)
        path = tmp_path / "connection.json"
        net.launch(0).write(path)
        assert client.ask(f"connect 0 1 connection={path}").startswith("ok")
        assert set(client.send(*range(NUM_STEPS))) == {"ok"}
        assert client.ask("finish") == "ok"
        for rank in net.study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        # Whichever breaks first makes the client connect to both anew.
        assert net.struck[type(course[0]).__name__] >= 1
        assert sorted(key for rank in net.study.ranks for key in rank.drawn) == [(0, i) for i in range(NUM_STEPS)]
        for rank in net.study.ranks:
            for (_, step), row in rank.rows.items():
                np.testing.assert_array_equal(row["u"], u(step))


@pytest.mark.parametrize("blocked", ["control", "data"])
def test_a_firewall_is_named_with_what_opens_it(client: NativeClient, tmp_path: Path, blocked: str) -> None:
    silence = Silence(after_bytes=0, way=Way.DOWN)
    courses = {"control": ((silence,), ((),)), "data": ((), ((silence,),))}
    control, data = courses[blocked]
    with crossing(StudyShape(fields=SMALL), control=control, data=data, wait_s=0.5) as net:
        path = tmp_path / "connection.json"
        net.launch(0).write(path)
        answer = client.ask(f"connect 0 1 connection={path} timeout=0.5")
        if blocked == "data":
            answer = client.send(0)[0]
    told = f"tcp://{LOOPBACK}:", "no word for 0.5 s. ", "network.interface", "network.ports"
    assert all(it in answer for it in told), answer


def test_what_a_server_knows_but_has_not_saved_is_sent_again_to_the_next_one(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        client.connect(server)
        assert set(client.send(*range(20))) == {"ok"}
        server.wait_until(lambda: len(server.steps) > 5)
        lose_connections(server)
        assert set(client.send(*range(20, 40))) == {"ok"}
        server.wait_until(lambda: len(server.steps) > 25)
        server.move(incarnation=4, known={0, 1}, num_ranks=3)
        assert client.ask("finish") == "ok"
        assert_has(server, 40)
        assert {it.incarnation for it in messages(server, Data)} == {4}
