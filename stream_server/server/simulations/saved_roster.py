"""The roster as a checkpoint has it: columns with a row for each simulation. Rank 0; pure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.simulations.simulation_state import SimulationState

UNKNOWN = -1
PHASES = tuple(SimulationPhase)
COLUMNS = ("simulations", "parameters", "phase", "attempt", "begun", "total", "num_settled")
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


class RosterColumns:
    """The simulations of a roster, column by column: as many objects would take a saver long to encode.

    `state_dict` copies the columns, so that its cost for what has not changed is that of a copy. `names` are those of
    the parameters.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._row_of: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._rows = np.empty(
            16,
            [
                ("simulations", np.int64),
                ("parameters", np.float64, (len(names),)),
                ("phase", np.uint8),
                ("attempt", np.int64),
                ("begun", np.bool_),
                ("total", np.int64),
                ("num_settled", np.int64),
            ],
        )

    def put(self, simulation: int, entry: SimulationState) -> None:
        """Write the row of a simulation."""
        row = self._row_of.setdefault(simulation, len(self._row_of))
        if row == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        parameters = [math.nan if entry.parameters is None else entry.parameters[it] for it in self.names]
        total = UNKNOWN if entry.num_steps is None else entry.num_steps
        numbers = _NUMBERS[entry.phase], entry.attempt, entry.begun, total, entry.num_settled
        self._rows[row] = (simulation, parameters, *numbers)
        if entry.reason:
            self._reasons[simulation] = entry.reason
        else:
            self._reasons.pop(simulation, None)

    def state_dict(self) -> dict[str, Any]:
        """The columns; `phase` has the numbers of `phases`, and parameters that are yet to be suggested are NaN."""
        rows = self._rows[: len(self._row_of)]
        return {
            "names": list(self.names),
            "phases": [phase.value for phase in PHASES],
            "reasons": dict(sorted(self._reasons.items())),
            **{column: rows[column].copy() for column in COLUMNS},
        }


def saved_simulations(state: Mapping[str, Any]) -> Iterator[tuple[int, SimulationState]]:
    """Go through what `RosterColumns.state_dict` gave, simulation by simulation."""
    names = [str(name) for name in state["names"]]
    phases = [SimulationPhase(phase) for phase in state["phases"]]
    reasons = {int(simulation): str(reason) for simulation, reason in state["reasons"].items()}
    rows = zip(*(np.asarray(state[column]).tolist() for column in COLUMNS), strict=True)
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


def given_up_in(state: Mapping[str, Any]) -> list[int]:
    """The simulations that were given up in what `Roster.state_dict` gave; a replay has no roster."""
    entries = saved_simulations(state["simulations"]) if state else ()
    return [simulation for simulation, entry in entries if entry.phase is SimulationPhase.GIVEN_UP]
