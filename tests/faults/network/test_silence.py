"""A network that never heals: who waits says so in words, at its time, and hangs for nothing."""

import time

import numpy as np
import pytest

from stream_server.client_api import connect
from stream_server.client_api.simulation import Simulation
from stream_server.errors import Unreachable
from stream_server.messages.client import Away, TimeSteps
from tests.faults.network.crossing import crossing
from tests.faults.network.faults import Fault, HalfOpen, Silence, Way
from tests.support.reception import StudyShape

PATIENCE_S = 1.0
FOR_EVER: dict[str, Fault] = {
    "nothing arrives": Silence(after_bytes=1500, way=Way.UP),
    "nothing is answered": Silence(after_bytes=600, way=Way.DOWN),
    "the server is gone without a word": HalfOpen(after_bytes=1500),
}


def send_all(simulation: Simulation) -> None:
    for step in range(60):
        simulation.send(step, u=np.full(4, step))
    simulation.finish()


@pytest.mark.parametrize("away", [Away.STOP, Away.WAIT])
@pytest.mark.parametrize("fault", FOR_EVER.values(), ids=FOR_EVER.keys())
def test_a_server_that_is_not_heard_any_more_ends_the_simulation_in_words(fault: Fault, away: Away) -> None:
    shape = StudyShape(secure=True, time_steps=TimeSteps(num=60), credit=4)
    wait_s = 2 * PATIENCE_S
    with crossing(shape, data=((fault,) * 9,), if_server_away=away, wait_s=wait_s) as net:
        simulation = connect(net.launch(0), timeout_s=PATIENCE_S)
        expected_s = PATIENCE_S if away is Away.STOP else wait_s
        start = time.monotonic()
        with pytest.raises(Unreachable, match=rf"simulation 0 rank 0 waits for .*: no word for {expected_s:g} s"):
            send_all(simulation)
        assert time.monotonic() - start >= expected_s
        assert net.struck.total() >= 1


def test_a_data_socket_behind_a_firewall_is_named_with_what_opens_it() -> None:
    words = r"waits for server rank 0 at tcp://.*: no word for 1 s\. .*network\.interface.*network\.ports"
    silence = Silence(after_bytes=0, way=Way.DOWN)
    with crossing(StudyShape(), data=((silence,),), wait_s=PATIENCE_S) as net, pytest.raises(Unreachable, match=words):
        connect(net.launch(0), timeout_s=PATIENCE_S).send(0, u=np.zeros(4))


def test_a_control_socket_that_is_not_heard_is_named_too() -> None:
    words = r"waits for study study-1 at tcp://.*: no word for 1 s\. .*network\.interface.*network\.ports"
    silence = Silence(after_bytes=0, way=Way.DOWN)
    with crossing(StudyShape(), control=(silence,)) as net, pytest.raises(Unreachable, match=words):
        connect(net.launch(0), timeout_s=PATIENCE_S)
