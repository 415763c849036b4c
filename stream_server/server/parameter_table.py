"""The parameters of the simulations, by id."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


class ParameterTable:
    """Rows of parameters, each asked for once: a batch then takes its rows in one operation. Training thread only."""

    def __init__(self, parameters_of: Callable[[int], NDArray[np.float64]]) -> None:
        self._parameters_of = parameters_of
        self._known = np.zeros(0, bool)
        self._rows = np.zeros((0, 0))

    def take(self, simulation_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """A copy of the rows of these simulations, shape (len(simulation_ids), P)."""
        if simulation_ids.max() >= len(self._known) or not self._known[simulation_ids].all():
            self._learn(simulation_ids)
        return self._rows.take(simulation_ids, 0)

    def _learn(self, simulation_ids: NDArray[np.int64]) -> None:
        for simulation in np.unique(simulation_ids).tolist():
            if simulation < len(self._known) and self._known[simulation]:
                continue
            parameters = np.asarray(self._parameters_of(simulation), np.float64)
            if simulation >= len(self._known):
                self._grow(max(2 * len(self._known), simulation + 1), len(parameters))
            self._rows[simulation] = parameters
            self._known[simulation] = True

    def _grow(self, num: int, num_parameters: int) -> None:
        known, rows = np.zeros(num, bool), np.zeros((num, num_parameters))
        known[: len(self._known)] = self._known
        rows[: len(self._rows), : self._rows.shape[1]] = self._rows
        self._known, self._rows = known, rows
