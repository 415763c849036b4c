"""The simulations of a replay, for the display and the report. Rank 0 only."""

from collections.abc import Mapping

from stream_server.server.account import SimulationEnd
from stream_server.server.entry import Entry, State
from stream_server.server.record.tally import Tally


class PlayedSimulations:
    """What a roster tells of simulations, of simulations that ran long ago: as many steps as were recorded are all."""

    def __init__(self, tally: Tally, parameters: tuple[str, ...], *, num_held_out: int) -> None:
        self.failures: list[dict[str, object]] = []
        self.num_survived = 0
        self.entries = {
            simulation: Entry(
                parameters=dict(zip(parameters, tally.parameters[simulation].tolist(), strict=True)),
                state=State.INVALID if simulation in tally.withdrawn else State.FINISHED,
                begun=True,
            )
            for simulation in tally.simulations
        }
        self._num_steps = {simulation: tally.num_samples(simulation) for simulation in tally.simulations}
        self._num_held_out = num_held_out

    @property
    def parameters(self) -> dict[int, dict[str, float]]:
        """The parameters of every simulation by id."""
        return {simulation: entry.parameters for simulation, entry in self.entries.items()}

    @property
    def num_settled(self) -> int:
        """How many samples all ranks have."""
        return sum(self._num_steps.values())

    @property
    def ends(self) -> Mapping[int, SimulationEnd]:
        """How the simulations ended, for the closing account."""
        return {
            simulation: SimulationEnd(
                state=entry.state.value,
                num_steps=self._num_steps[simulation],
                held_out=simulation < self._num_held_out,
            )
            for simulation, entry in self.entries.items()
        }

    @property
    def awaited(self) -> str:
        """Nothing: all has been recorded."""
        return ""

    def counts(self) -> dict[str, int]:
        """How many simulations are in each state."""
        counts = dict.fromkeys((state.value for state in State), 0)
        for entry in self.entries.values():
            counts[entry.state] += 1
        return counts

    def num_steps(self, simulation: int) -> int | None:
        """How many steps were recorded of a simulation."""
        return self._num_steps[simulation]
