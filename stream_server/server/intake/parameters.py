"""The parameters of the simulations that have begun, as a rank keeps them and a checkpoint has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The origin of suggested parameters: by whom and when they were proposed, and the score that they had there."""

    by: str
    at: str
    score: float | None = None


class SimulationParameters:
    """The parameters of simulations by id, in the order of study.json: rows of one array, which a checkpoint copies.

    One thread writes; any may read a row, which is a copy.
    """

    def __init__(self) -> None:
        self._known = np.zeros(0, bool)
        self._rows = np.zeros((0, 0))

    def __contains__(self, simulation: int) -> bool:
        # Whoever writes puts a larger array of rows in its place before `_known`, so what is known has a row.
        return 0 <= simulation < len(self._known) and bool(self._known[simulation])

    def __getitem__(self, simulation: int) -> NDArray[np.float64]:
        """The parameters of one simulation.

        Raises:
            KeyError: it has not begun.
        """
        if simulation not in self:
            raise KeyError(f"the parameters of simulation {simulation} are not known: none of its samples has come")
        row: NDArray[np.float64] = self._rows[simulation].copy()
        return row

    def __setitem__(self, simulation: int, values: ArrayLike) -> None:
        row = np.asarray(values, np.float64)
        if simulation >= len(self._known):
            self._grow(max(2 * len(self._known), simulation + 1), len(row))
        self._rows[simulation] = row
        self._known[simulation] = True

    def know(self, simulation_ids: NDArray[np.int64]) -> bool:
        try:
            return bool(self._known[simulation_ids].all())
        except IndexError:
            return False

    def take(self, simulation_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """A copy of the rows of simulations that have begun, shape (len(simulation_ids), P)."""
        return self._rows.take(simulation_ids, 0)

    def state_dict(self) -> dict[str, Any]:
        """The ids, and a row of parameters for each."""
        simulations = np.flatnonzero(self._known)
        return {"simulations": simulations, "values": self._rows[simulations]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what was saved, in addition to what is known."""
        for simulation, row in zip(np.asarray(state["simulations"]).tolist(), state["values"], strict=True):
            self[simulation] = row

    @classmethod
    def redealt(cls, states: Sequence[Mapping[str, Any]], rank: int, dealing: object) -> dict[str, Any]:
        """The parameters of all simulations, on every rank."""
        of_all = cls()
        for state in states:
            of_all.load_state_dict(state)
        return of_all.state_dict()

    def _grow(self, num: int, num_parameters: int) -> None:
        known, rows = np.zeros(num, bool), np.zeros((num, num_parameters))
        known[: len(self._known)] = self._known
        rows[: len(self._rows), : self._rows.shape[1]] = self._rows
        self._rows = rows
        self._known = known
