"""The simulations of a study: the state of each, counts that follow each change, and the rows that are saved.

Rank 0; pure.

Why: docs/decisions/0041-state-as-rows.md
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from stream_server.messages import notices
from stream_server.messages.client import ATTACHING
from stream_server.messages.simulation_phase import (
    QUEUED,
    TERMINAL,
    SavedSimulation,
    SimulationPhase,
    saved_simulations,
)

PHASE_TRANSITIONS = {
    SimulationPhase.WAITING: TERMINAL | {SimulationPhase.RUNNING},
    # A new attempt may begin before the end of the previous one was reported.
    SimulationPhase.RUNNING: TERMINAL | {SimulationPhase.RUNNING, SimulationPhase.WAITING},
}


@dataclass(kw_only=True, slots=True)
class SimulationState:
    """One simulation of the roster; `shares[r]` is the latest report of server rank r on the current attempt.

    `parameters` are None until they were suggested; before that nobody can run it.

    `num_settled` counts the steps that were accepted or rejected, `total` those that there are, as far as an earlier
    attempt or incarnation has reported.

    `begun`: there was an attempt. `attached`: the current one is run by clients that nobody launched. `ready`: every
    rank knows of it. `goes_on`: it was begun before this server was, and has not been heard of since. `waits_for`: what
    the job of the current attempt waits for, as far as the launcher knows that, None if it runs;
    `had_to_wait`: it waited for something since this server knows of the attempt.
    """

    parameters: dict[str, float] | None
    phase: SimulationPhase = SimulationPhase.WAITING
    attempt: int = 0
    begun: bool = False
    attached: bool = False
    ready: bool = False
    goes_on: bool = False
    reason: str = ""
    waits_for: str | None = None
    had_to_wait: bool = False
    total: int | None = None
    num_settled: int = 0
    shares: dict[int, notices.Share] = field(default_factory=dict)

    @property
    def known_parameters(self) -> dict[str, float]:
        """The parameters of a simulation that the launcher knows."""
        assert self.parameters is not None
        return self.parameters

    def restore(self, total: int | None, *, is_finished: bool) -> None:
        """Continue in another incarnation: what was not given up, withdrawn or stopped early is finished, or to come.

        `total` is the number of steps of a finished simulation, if the ledgers know it.
        """
        if self.phase not in (SimulationPhase.GIVEN_UP, SimulationPhase.INVALID, SimulationPhase.STOPPED_EARLY):
            self.phase, self.reason = SimulationPhase.FINISHED if is_finished else SimulationPhase.WAITING, ""
        self.total = self.total if total is None else total

    def enter(self, phase: SimulationPhase, reason: str = "") -> None:
        """Change the phase, as `PHASE_TRANSITIONS` allows; a terminal one is never left."""
        assert phase in PHASE_TRANSITIONS.get(self.phase, ()), f"from {self.phase} to {phase}"
        self.phase, self.reason = phase, reason

    @property
    def num_steps(self) -> int | None:
        """Number of steps, as the simulation or the study gave it; None while neither has."""
        totals = [share.total for share in self.shares.values() if share.total is not None]
        # A rank that has its whole share may not have heard yet that the simulation ended early.
        return min(totals, default=self.total)

    @property
    def num_repeated(self) -> int:
        """Number of steps that the current attempt has sent again without being asked."""
        return sum(share.repeated for share in self.shares.values())

    @property
    def is_ready_to_start(self) -> bool:
        return self.phase is SimulationPhase.WAITING and not self.begun and self.parameters is not None

    @property
    def is_queued(self) -> bool:
        """Its job waits, or its worker has yet to come to it."""
        return self.phase is SimulationPhase.RUNNING and self.waits_for is not None

    @property
    def wanted(self) -> int:
        """The attempt that the clients of the current one say they belong to."""
        return ATTACHING if self.attached else self.attempt


def _state_of(saved: SavedSimulation) -> SimulationState:
    return SimulationState(
        parameters=saved.parameters,
        phase=saved.phase,
        attempt=saved.attempt,
        begun=saved.begun,
        reason=saved.reason,
        total=saved.total,
        num_settled=saved.num_settled,
    )


def given_up_in(state: Mapping[str, Any]) -> list[int]:
    """The simulations that were given up in what `Roster.state_dict` gave; a replay has no roster."""
    entries = saved_simulations(state["simulations"]) if state else ()
    return [entry.simulation for entry in entries if entry.phase is SimulationPhase.GIVEN_UP]


class SimulationTable:
    """The state of every simulation, in the order of ids.

    Whatever is asked often is counted as phases change, so that it costs the same with 10 and 100,000 simulations.
    `num_settled` counts the steps that all ranks have accepted or rejected. `running` are the ids that run. Parameters
    that are yet to be suggested are wanted in the order of ids, `lookahead` of them ahead of what starts, and only for
    the first `num_released` ids: the others belong to later rounds.
    """

    def __init__(self, *, lookahead: int = 0, num_released: int | None = None) -> None:
        self.num_released: float = math.inf if num_released is None else num_released
        self.entries: dict[int, SimulationState] = {}
        self.running: set[int] = set()
        self.num_settled = 0
        self._lookahead = lookahead
        self._num_in = Counter[SimulationPhase]()
        # The order is that of ids.
        self._unsuggested: dict[int, None] = {}
        self._num_ready = 0
        self._rows: dict[int, msgspec.Raw] = {}
        # Their rows may lag behind.
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
        return {i: {**results[i], **entry.parameters} for i, entry in entries.items() if entry.parameters is not None}

    @property
    def unsuggested(self) -> tuple[int, ...]:
        """The ids whose parameters are yet to be suggested."""
        return tuple(self._unsuggested)

    @property
    def num_wanted(self) -> int:
        """Parameters are wanted for the simulations below this id, so that enough of them are ready to be started."""
        num = min(len(self._unsuggested), max(0, self._lookahead - self._num_ready))
        wanted = next(islice(self._unsuggested, num - 1, None)) + 1 if num else 0
        return int(min(wanted, self.num_released))

    @property
    def all_over(self) -> bool:
        """No simulation waits or runs."""
        return not (self.running or self._num_in[SimulationPhase.WAITING])

    @property
    def round_over(self) -> bool:
        """No simulation of this round waits or runs, but there are others of later ones."""
        if self.running or not self._unsuggested or self._num_in[SimulationPhase.WAITING] > len(self._unsuggested):
            return False
        return next(iter(self._unsuggested)) >= self.num_released

    @property
    def num_unreleased(self) -> int:
        """Number of simulations that wait for their round."""
        return int(max(0, min(len(self._unsuggested), len(self.entries) - self.num_released)))

    def num_in(self, phase: SimulationPhase) -> int:
        return self._num_in[phase]

    def of_phase(self, *phases: SimulationPhase) -> list[int]:
        return [i for phase in phases if self._num_in[phase] for i, each in self.entries.items() if each.phase is phase]

    def counts(self) -> dict[str, int]:
        """Number of simulations in each state; `queued` ones were started and do not run yet."""
        num_queued = sum(1 for _ in self._queued())
        counts = {phase.value: self._num_in[phase] for phase in SimulationPhase}
        running = SimulationPhase.RUNNING.value
        return {SimulationPhase.WAITING.value: 0, QUEUED: num_queued} | counts | {running: counts[running] - num_queued}

    def queue(self) -> dict[str, int]:
        """Number of queued simulations by what they wait for, the most frequent first."""
        return dict(Counter(entry.waits_for or "" for entry in self._queued()).most_common())

    def rows(self) -> bytes:
        """All simulations, for a checkpoint: as one value, of which only what may have changed is encoded again."""
        for i in sorted(self._unsaved):
            entry = self.entries[i]
            counts = entry.num_steps, entry.num_settled
            row = SavedSimulation(i, entry.parameters, entry.phase, entry.attempt, entry.begun, entry.reason, *counts)
            self._rows[i] = msgspec.Raw(msgspec.msgpack.encode(row))
        # A client that attached tells its parameters while it runs.
        self._unsaved = set(self.running)
        return msgspec.msgpack.encode([*self._rows.values()])

    def load(self, rows: bytes, continued: Callable[[int, SimulationState], bool]) -> int:
        """Replace all simulations by those of `rows` that are `continued`; returns the id after the last."""
        self._clear()
        following = 0
        for saved in saved_simulations(rows):
            i, entry = saved.simulation, _state_of(saved)
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
        self._rows.clear()
        self.num_settled = 0

    def _queued(self) -> Iterator[SimulationState]:
        return (entry for entry in map(self.entries.__getitem__, self.running) if entry.is_queued)
