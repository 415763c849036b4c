"""The simulations of a study by id, and counts that follow each change. Rank 0; pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from stream_server.messages.simulation_phase import QUEUED, SimulationPhase
from stream_server.server.simulations.saved_roster import RosterColumns, saved_simulations
from stream_server.server.simulations.simulation_state import SimulationState


class SimulationTable:
    """The state of every simulation, in the order of ids.

    Whatever is asked often is counted as phases change, so that it costs the same with 10 and 100,000 simulations.
    `num_settled` counts the steps that all ranks have accepted or rejected. `running` are the ids that run. Parameters
    that are yet to be suggested are wanted in the order of ids, `lookahead` of them ahead of what starts.
    """

    def __init__(self, names: tuple[str, ...], *, lookahead: int = 0) -> None:
        self.entries: dict[int, SimulationState] = {}
        self.running: set[int] = set()
        self.num_settled = 0
        self._names = names
        self._lookahead = lookahead
        self._num_in = Counter[SimulationPhase]()
        # The order is that of ids.
        self._unsuggested: dict[int, None] = {}
        self._num_ready = 0
        self._columns = RosterColumns(names)
        # Their rows in the columns may lag behind.
        self._unsaved: set[int] = set()

    def add(self, simulation: int, entry: SimulationState) -> None:
        """One more simulation, which does not run."""
        self.entries[simulation] = entry
        self._num_in[entry.phase] += 1
        self.num_settled += entry.num_settled
        self._unsaved.add(simulation)
        if entry.phase is SimulationPhase.WAITING and entry.parameters is None:
            self._unsuggested[simulation] = None
        else:
            self._num_ready += entry.is_ready_to_start

    def enter(self, simulation: int, phase: SimulationPhase, reason: str = "") -> None:
        """Change the phase of a simulation, as `SimulationState.enter` allows."""
        entry = self.entries[simulation]
        before = entry.phase
        self._num_ready -= entry.is_ready_to_start
        self._unsuggested.pop(simulation, None)
        entry.enter(phase, reason)
        self._num_ready += entry.is_ready_to_start
        self._num_in[before] -= 1
        self._num_in[phase] += 1
        if phase is SimulationPhase.RUNNING:
            self.running.add(simulation)
        else:
            self.running.discard(simulation)
        self._unsaved.add(simulation)

    def count_settled(self, simulation: int) -> None:
        """Count what the ranks' latest shares of a simulation say; what they said once stays counted."""
        entry = self.entries[simulation]
        before = entry.num_settled
        entry.num_settled = max(before, sum(s.accepted + s.rejected for s in entry.shares.values()))
        self.num_settled += entry.num_settled - before
        self._unsaved.add(simulation)

    def suggest(self, simulation: int, parameters: Mapping[str, float]) -> bool:
        """Give a simulation its parameters; whether it still had none."""
        if simulation not in self._unsuggested:
            return False
        del self._unsuggested[simulation]
        self.entries[simulation].parameters = dict(parameters)
        self._num_ready += 1
        self._unsaved.add(simulation)
        return True

    def with_parameters(self, results: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
        """The results of simulations, each with the parameters that it runs with; a client may have brought its own."""
        entries = {i: self.entries[i] for i in results if i in self.entries}
        return {i: {**results[i], **it.parameters} for i, it in entries.items() if it.parameters is not None}

    @property
    def unsuggested(self) -> tuple[int, ...]:
        """The ids whose parameters are yet to be suggested."""
        return tuple(self._unsuggested)

    @property
    def num_wanted(self) -> int:
        """Parameters are wanted for the simulations below this id, so that enough of them are ready to be started."""
        num = min(len(self._unsuggested), max(0, self._lookahead - self._num_ready))
        return next(islice(self._unsuggested, num - 1, None)) + 1 if num else 0

    @property
    def all_over(self) -> bool:
        """No simulation waits or runs."""
        return not (self.running or self._num_in[SimulationPhase.WAITING])

    def num_in(self, phase: SimulationPhase) -> int:
        return self._num_in[phase]

    def of_phase(self, *phases: SimulationPhase) -> list[int]:
        """The ids in these phases, phase by phase."""
        return [i for phase in phases if self._num_in[phase] for i, it in self.entries.items() if it.phase is phase]

    def counts(self) -> dict[str, int]:
        """How many simulations are in each state; of those that were started, the `queued` ones do not run yet."""
        num_queued = sum(1 for _ in self._queued())
        counts = {phase.value: self._num_in[phase] for phase in SimulationPhase}
        running = SimulationPhase.RUNNING.value
        return {SimulationPhase.WAITING.value: 0, QUEUED: num_queued} | counts | {running: counts[running] - num_queued}

    def queue(self) -> dict[str, int]:
        """How many of the queued simulations wait for what, the most frequent first."""
        return dict(Counter(entry.waits_for or "" for entry in self._queued()).most_common())

    def state_dict(self) -> dict[str, Any]:
        """The columns of `RosterColumns`. What does not change any more costs no more than a copy of its row."""
        for i in sorted(self._unsaved):
            self._columns.put(i, self.entries[i])
        # A client that attached tells its parameters while it runs.
        self._unsaved = set(self.running)
        return self._columns.state_dict()

    def load(self, state: Mapping[str, Any], continued: Callable[[int, SimulationState], bool]) -> int:
        """Replace all simulations by those of a `state_dict` that are `continued`; gives the id after the last."""
        self._clear()
        following = 0
        for i, entry in saved_simulations(state):
            following = max(following, i + 1)
            if continued(i, entry):
                self.add(i, entry)
        return following

    def _clear(self) -> None:
        self.entries.clear()
        self._num_in.clear()
        self._unsaved.clear()
        self._unsuggested.clear()
        self._num_ready = 0
        self._columns = RosterColumns(self._names)
        self.num_settled = 0

    def _queued(self) -> Iterator[SimulationState]:
        return (entry for entry in map(self.entries.__getitem__, self.running) if entry.is_queued)
