"""Which server rank gets which step."""

import pytest

from stream_server.messages.client import Routing
from stream_server.messages.routing import server_rank, share, stride


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("simulation", [0, 1, 5, 100])
@pytest.mark.parametrize("num_steps", [1, 2, 10, 23])
def test_every_step_belongs_to_the_share_of_exactly_its_rank(
    routing: Routing, num_ranks: int, simulation: int, num_steps: int
) -> None:
    for rank in range(num_ranks):
        mine = [i for i in range(num_steps) if server_rank(routing, simulation, i, num_ranks) == rank]
        assert list(share(routing, simulation, rank, num_ranks, num_steps)) == mine


@pytest.mark.parametrize("routing", Routing)
def test_neighbouring_steps_of_a_share_are_one_stride_apart(routing: Routing) -> None:
    for rank in range(4):
        steps = share(routing, 6, rank, 4, 20)
        assert steps.step == stride(routing, 4) or len(steps) == 0


def test_one_step_of_many_simulations_is_spread_over_the_ranks() -> None:
    assert {server_rank(Routing.STEPS, simulation, 0, 4) for simulation in range(4)} == {0, 1, 2, 3}


def test_routing_by_simulations_keeps_a_simulation_on_one_rank() -> None:
    assert {server_rank(Routing.SIMULATIONS, 6, index, 4) for index in range(20)} == {2}
