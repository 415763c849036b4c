"""The simulations of a study: the state of each, counts that follow each change, and the columns that are saved.

Rank 0; pure.

Why: docs/decisions/0041-state-as-columns.md
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from stream_server.messages import notices
from stream_server.messages.client import ATTACHING
from stream_server.messages.simulation_phase import QUEUED, TERMINAL, SimulationPhase

PHASE_TRANSITIONS = {
    SimulationPhase.WAITING: TERMINAL | {SimulationPhase.RUNNING},
    # A new attempt may begin before the end of the previous one was reported.
    SimulationPhase.RUNNING: TERMINAL | {SimulationPhase.RUNNING, SimulationPhase.WAITING},
}
UNKNOWN = -1
PHASES = tuple(SimulationPhase)
COLUMNS = ("simulations", "parameters", "phase", "attempt", "begun", "total", "num_settled")
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


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
        """The parameters of a simulation that was told to the launcher."""
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
        """How many steps the simulation said it has, or the study gave it; None while neither has said."""
        totals = [share.total for share in self.shares.values() if share.total is not None]
        # A rank that has its whole share may not have heard yet that the simulation ended early.
        return min(totals, default=self.total)

    @property
    def num_repeated(self) -> int:
        """How many steps the current attempt has sent again, although nobody asked for them."""
        return sum(share.repeated for share in self.shares.values())

    @property
    def is_ready_to_start(self) -> bool:
        """Whether it has its parameters, and nobody has begun it."""
        return self.phase is SimulationPhase.WAITING and not self.begun and self.parameters is not None

    @property
    def is_queued(self) -> bool:
        """Its job waits, or its worker has yet to come to it."""
        return self.phase is SimulationPhase.RUNNING and self.waits_for is not None

    @property
    def wanted(self) -> int:
        """The attempt that the clients of the current one say they belong to."""
        return ATTACHING if self.attached else self.attempt


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
