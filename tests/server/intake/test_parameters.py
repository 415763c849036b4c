"""The parameters of the simulations that have begun."""

import numpy as np
import pytest

from stream_server.server.intake.parameters import SimulationParameters
from stream_server.storage.plain_state import from_bytes, to_bytes


def test_parameters_are_those_that_a_simulation_began_with_last() -> None:
    parameters = SimulationParameters()
    parameters[5] = [1.0, 2.0]
    before = parameters[5]
    parameters[5] = [3.0, 4.0]
    assert (before.tolist(), parameters[5].tolist()) == ([1.0, 2.0], [3.0, 4.0])


@pytest.mark.parametrize("simulation", [-1, 0, 4, 6, 1000])
def test_a_simulation_that_has_not_begun_has_none(simulation: int) -> None:
    parameters = SimulationParameters()
    parameters[5] = [1.0]
    with pytest.raises(KeyError):
        parameters[simulation]


def test_a_restored_rank_knows_the_same_parameters_and_those_of_the_other_ranks() -> None:
    first, second, other = SimulationParameters(), SimulationParameters(), SimulationParameters()
    other.load_state_dict(from_bytes(to_bytes(first.state_dict())))
    first[2], second[700] = [0.1, np.inf], [0.2, -1.0]
    for it in (first, second):
        other.load_state_dict(from_bytes(to_bytes(it.state_dict())))
    assert {i: other[i].tolist() for i in (2, 700)} == {2: [0.1, np.inf], 700: [0.2, -1.0]}
