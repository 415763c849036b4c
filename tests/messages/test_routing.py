"""Which server rank gets which step."""

from itertools import pairwise

import pytest

from stream_server.messages.client import Routing
from stream_server.messages.routing import Dealing


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("simulation", [0, 1, 5, 100])
@pytest.mark.parametrize("num_steps", [1, 2, 10, 23])
def test_every_step_belongs_to_the_share_of_exactly_its_rank(
    routing: Routing, num_ranks: int, simulation: int, num_steps: int
) -> None:
    for rank in range(num_ranks):
        dealing = Dealing(routing, num_ranks)
        mine = [i for i in range(num_steps) if dealing.server_rank(simulation, i) == rank]
        assert list(dealing.share(simulation, rank, num_steps)) == mine


@pytest.mark.parametrize("routing", Routing)
def test_neighbouring_steps_of_a_share_are_one_stride_apart(routing: Routing) -> None:
    for rank in range(4):
        dealing = Dealing(routing, 4)
        steps = list(dealing.share(6, rank, 20))
        assert all(later - earlier == dealing.stride for earlier, later in pairwise(steps))


def test_one_step_of_many_simulations_is_spread_over_the_ranks() -> None:
    assert {Dealing(Routing.STEPS, 4).server_rank(simulation, 0) for simulation in range(4)} == {0, 1, 2, 3}


def test_routing_by_simulations_keeps_a_simulation_on_one_rank() -> None:
    assert {Dealing(Routing.SIMULATIONS, 4).server_rank(6, index) for index in range(20)} == {2}
