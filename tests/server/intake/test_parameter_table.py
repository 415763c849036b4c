"""Parameters by simulation id."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.simulations.design import ParameterTable


def test_every_simulation_is_asked_for_once() -> None:
    asked = []

    def parameters_of(simulation: int) -> NDArray[np.float64]:
        asked.append(simulation)
        return np.array([simulation, simulation / 2])

    table = ParameterTable(parameters_of)
    assert table.take(np.array([3, 3, 1])).tolist() == [[3, 1.5], [3, 1.5], [1, 0.5]]
    assert table.take(np.array([8, 1])).tolist() == [[8, 4], [1, 0.5]]
    assert sorted(asked) == [1, 3, 8]


def test_no_simulation_has_no_rows() -> None:
    assert len(ParameterTable(lambda simulation: np.array([1.0])).take(np.zeros(0, np.int64))) == 0


def test_rows_are_copies() -> None:
    table = ParameterTable(lambda simulation: np.array([1.0]))
    table.take(np.array([0]))[0] = 5
    assert table.take(np.array([0])).tolist() == [[1.0]]


def test_a_simulation_that_has_not_begun_is_named() -> None:
    table = ParameterTable(SimulationParameters().__getitem__)
    with pytest.raises(KeyError, match="the parameters of simulation 3 are not known: none of its samples has come"):
        table.take(np.array([3]))
