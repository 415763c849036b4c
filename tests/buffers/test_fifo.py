from hypothesis import strategies as st

from stream_server.buffers import Fifo
from tests.buffers.models import FifoModel
from tests.buffers.policy_machine import MACHINE_SETTINGS, PolicyMachine


class FifoMachine(PolicyMachine):
    pairs = st.integers(1, 12).map(lambda capacity: (lambda: Fifo(capacity=capacity), lambda: FifoModel(capacity)))


TestFifoBehavesAsItsModel = FifoMachine.TestCase
TestFifoBehavesAsItsModel.settings = MACHINE_SETTINGS


def test_fifo_draws_in_the_order_of_arrival_across_the_end_of_its_ring() -> None:
    policy = Fifo(capacity=4)
    drawn = []
    for start in range(0, 12, 3):
        policy.put([start, start + 1, start + 2])
        drawn += policy.draw(3).slots.tolist()
    assert drawn == list(range(12))


def test_a_full_fifo_has_no_room_until_something_is_drawn() -> None:
    policy = Fifo(capacity=2)
    policy.put([0, 1])
    assert policy.room == 0
    policy.draw(1)
    assert policy.room == 1
