"""The roster as a checkpoint has it: columns with a row for each simulation. Rank 0; pure."""

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stream_server.server.simulations.simulation_state import SimulationPhase, SimulationState

UNKNOWN = -1
PHASES = tuple(SimulationPhase)
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class RosterColumns:
    """The simulations of a roster, column by column: as many objects would take a saver long to encode.

    `state_dict` copies the columns, so that its cost for what has not changed is that of a copy. `names` are those of
    the parameters.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._rows: dict[int, int] = {}
        self._simulations = array("q")
        self._parameters = array("d")
        self._phases = bytearray()
        self._attempts = array("q")
        self._begun = bytearray()
        self._totals = array("q")
        self._num_settled = array("q")
        self._reasons: dict[int, str] = {}

    def put(self, simulation: int, entry: SimulationState) -> None:
        """Write the row of a simulation."""
        row = self._rows.get(simulation)
        if row is None:
            row = self._append(simulation)
        width = len(self.names)
        values = [math.nan if entry.parameters is None else entry.parameters[it] for it in self.names]
        self._parameters[row * width : (row + 1) * width] = array("d", values)
        self._phases[row] = _NUMBERS[entry.phase]
        self._attempts[row] = entry.attempt
        self._begun[row] = entry.begun
        num_steps = entry.num_steps
        self._totals[row] = UNKNOWN if num_steps is None else num_steps
        self._num_settled[row] = entry.num_settled
        if entry.reason:
            self._reasons[simulation] = entry.reason
        else:
            self._reasons.pop(simulation, None)

    def state_dict(self) -> dict[str, Any]:
        """The columns; `phase` has the numbers of `phases`, and parameters that are yet to be suggested are NaN."""
        shape = (len(self._simulations), len(self.names))
        return {
            "names": list(self.names),
            "phases": [phase.value for phase in PHASES],
            "simulations": np.array(self._simulations, np.int64),
            "parameters": np.array(self._parameters, np.float64).reshape(shape),
            "phase": np.array(self._phases, np.uint8),
            "attempt": np.array(self._attempts, np.int64),
            "begun": np.array(self._begun, bool),
            "total": np.array(self._totals, np.int64),
            "num_settled": np.array(self._num_settled, np.int64),
            "reasons": dict(sorted(self._reasons.items())),
        }

    def _append(self, simulation: int) -> int:
        row = self._rows[simulation] = len(self._simulations)
        self._simulations.append(simulation)
        self._parameters.extend([0.0] * len(self.names))
        self._phases.append(0)
        self._attempts.append(0)
        self._begun.append(False)
        self._totals.append(UNKNOWN)
        self._num_settled.append(0)
        return row


def saved_simulations(state: Mapping[str, Any]) -> Iterator[tuple[int, SimulationState]]:
    """Go through what `RosterColumns.state_dict` gave, simulation by simulation."""
    names = [str(name) for name in state["names"]]
    phases = [SimulationPhase(phase) for phase in state["phases"]]
    reasons = {int(simulation): str(reason) for simulation, reason in state["reasons"].items()}
    columns = ("simulations", "parameters", "phase", "attempt", "begun", "total", "num_settled")
    rows = zip(*(np.asarray(state[column]).tolist() for column in columns), strict=True)
    for simulation, parameters, phase, attempt, begun, total, num_settled in rows:
        yield (
            simulation,
            SimulationState(
                parameters=None if any(map(math.isnan, parameters)) else dict(zip(names, parameters, strict=True)),
                phase=phases[phase],
                attempt=attempt,
                begun=begun,
                reason=reasons.get(simulation, ""),
                total=None if total == UNKNOWN else total,
                num_settled=num_settled,
            ),
        )
