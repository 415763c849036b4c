"""The intake of one server rank: from whole steps of simulations to samples in the buffer, and the account of them.

It has no sockets and no clock, and knows nothing of messages: `Assembly` makes steps of those. Receiver thread.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stream_server.buffers import Buffer
from stream_server.messages.notices import Share
from stream_server.messages.routing import Dealing
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import RankAccount, Received, WindowCounts
from stream_server.server.intake.attempts import AttemptState, Connection, StepRun
from stream_server.server.intake.comparison import AttemptComparison, EqualSimulations, MissingFields
from stream_server.server.intake.credit import CreditPool
from stream_server.server.intake.ledger import Ledger, LedgerEntry
from stream_server.server.intake.settlement import Settlement
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore

NO_LIMIT = 2**62


class Intake:
    """Settles the steps of simulations, and hands them to the buffer turn by turn.

    A turn is some calls of `settle`, then `flush`. `credit_slots` is how many steps of all simulations together have a
    slot beside a full buffer, so that a step within its credit always finds one, and half-assembled steps never keep
    out those parts that would complete them. `nonfinite` says what happens to samples with NaN or infinity: "reject",
    "keep" or "stop". A checkpoint is asked for when a simulation has sent `max_unsaved` steps since the last one.
    """

    def __init__(
        self,
        state: IntakeState,
        *,
        buffer: Buffer,
        validation: ValidationStore,
        credit_slots: int,
        max_unsaved: int = NO_LIMIT,
        nonfinite: str = "reject",
    ) -> None:
        self.slots = buffer.slots
        self.state = state
        self.settlement = Settlement(
            buffer,
            validation,
            CreditPool(size=credit_slots, credit=state.credit),
            state,
            nonfinite=nonfinite,
            max_unsaved=max_unsaved,
        )
        # One rank is enough: it has some of the steps, or of the simulations. Fields that are sent once may differ.
        is_told = state.rank == 0
        is_compared = is_told and not state.static_fields
        equal = EqualSimulations(buffer.slots, is_open=is_compared, stride=state.dealing.stride)
        # What came before a restart is not known here.
        is_whole = is_told and state.incarnation == 1
        optional = (it.name for it in state.fields.values() if it.optional and is_whole)
        missing = MissingFields(optional, num_ranks=state.dealing.num_ranks)
        self.observers = self.settlement.observers = (equal, missing)
        self.comparison = AttemptComparison(state, self.settlement)

    def attempt(self, simulation: int) -> AttemptState | None:
        """The current attempt of a simulation; None before its first one."""
        return self.state.attempts.get(simulation)

    def begin_attempt(self, simulation: int, attempt: int, *, goes_on: bool = False) -> None:
        """Make this attempt the current one, and drop half-assembled steps of older ones.

        `goes_on`: it ran in an earlier incarnation, and does not send again what is known of it.
        """
        old = self.attempt(simulation)
        if old is not None:
            if attempt <= old.attempt or old.end_state:
                return
            self._end(old)
        begun = self.state.begin(simulation, attempt, goes_on=goes_on)
        if self.state.static_fields:
            begun.statics.layout.num_rows = self.slots.statics.num_rows(simulation)
        self.settlement.check_share(begun)
        if not goes_on:
            self.comparison.begin(begun)
        if begun.share_complete or begun.entry.settled:
            self.settlement.changed.add(simulation)

    def end_attempt(self, simulation: int, attempt: int) -> None:
        """Accept nothing more from an attempt, which has ended."""
        current = self.attempt(simulation)
        if current is not None and current.attempt == attempt:
            self._end(current)

    def end_simulation(self, simulation: int, end_state: str, reason: str = "") -> None:
        """Accept nothing more from a simulation, which has its terminal state; an invalid one is withdrawn."""
        current = self.attempt(simulation)
        if current is not None:
            current.end_state, current.end_reason = end_state, reason
            self._end(current)
            current.ends.clear()
            current.layout.blocks.clear()
            current.statics.layout.blocks.clear()
        if end_state == SimulationPhase.FINISHED:
            self._finish(simulation)
        elif end_state == SimulationPhase.INVALID:
            self.settlement.withdraw(simulation)
        elif end_state == SimulationPhase.STOPPED_EARLY:
            self.settlement.end(simulation)

    def allocate(self) -> None:
        """Make the arrays of the slots once the types of all fields of a time step are known.

        Raises:
            ConfigError: the system refuses the memory.
        """
        if self.state.dtypes_known:
            self.settlement.allocate({name: self.state.dtypes[name] for name in self.state.fields})
        known = {name: self.state.dtypes[name] for name in self.state.static_fields if name in self.state.dtypes}
        if known:
            self.slots.statics.dtypes = known

    def settle(self, run: StepRun) -> None:
        """Accept or reject steps that are all there, or compare them with what came of them before.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        if run.indices.start in run.attempt.entry.settled:
            self.comparison.compare(run)
        else:
            self.settlement.settle(run)

    def flush(self) -> dict[bytes, Connection]:
        """End a turn: give the buffer what it has room for, and let go of fields of which no sample is here.

        Returns:
            The connections that may be owed an acknowledgement since the last call, by peer.
        """
        self.settlement.flush()
        if self.state.static_fields:
            self.settlement.buffer.free_statics(self._needs_statics)
        touched, self.settlement.touched = self.settlement.touched, {}
        return touched

    def changes(self, *, only_complete: bool = False) -> list[Share]:
        """The progress of the simulations that have changed since the last call.

        With `only_complete`, of those in which others wait for the news: this rank's share is complete.
        """
        settlement, attempts = self.settlement, self.state.attempts
        if only_complete and not settlement.has_complete_share:
            return []
        settlement.has_complete_share = False
        told = {it for it in settlement.changed if not only_complete or attempts[it].share_complete}
        settlement.changed -= told
        return [
            Share(
                simulation=attempt.simulation,
                attempt=attempt.attempt,
                received=attempt.received,
                blocked=attempt.blocked,
                accepted=attempt.entry.num_accepted,
                rejected=attempt.entry.num_rejected,
                complete=attempt.share_complete,
                total=attempt.total,
                repeated=attempt.repeated,
                differs=attempt.differs,
            )
            for attempt in map(attempts.__getitem__, told)
            if not attempt.end_state or attempt.stopped_early
        ]

    @property
    def num_received(self) -> int:
        """How many steps this rank has settled, ever."""
        return sum(entry.num_settled for entry in self.state.ledger.entries.values())

    def account(self) -> RankAccount:
        """The account of this rank so far."""
        ledger = self.state.ledger
        return RankAccount(
            intake={simulation: self._received(simulation, entry) for simulation, entry in ledger.entries.items()},
            duplicates=ledger.duplicates,
            withdrawn=self.settlement.num_withdrawn,
            refused=dict(self.state.refused),
        )

    def _received(self, simulation: int, entry: LedgerEntry) -> Received:
        windows = self.settlement.buffer.windows
        return Received(
            accepted=entry.num_accepted,
            rejected=dict(entry.reasons),
            windows=None
            if windows is None
            else WindowCounts(
                of_accepted=windows.shape.num_among(entry.accepted()),
                of_settled=windows.shape.num_among(entry.settled.array()),
                late=windows.num_late[simulation],
            ),
        )

    @property
    def num_under_way(self) -> int:
        """Slots that steps hold before they are in the stream; never above `credit_slots`."""
        return self.settlement.num_waiting + sum(len(it.partial_steps) for it in self.state.attempts.values())

    def checkpoint_taken(self) -> None:
        """Note that a checkpoint was taken: what came so far is in it."""
        self.settlement.has_pressure = False
        for attempt in self.state.attempts.values():
            attempt.num_unsaved = 0

    @property
    def num_drawn(self) -> int:
        """How many of the accepted samples were drawn on whatever rank: those that are not left and did not go."""
        accepted, settlement = self.account().intake.items(), self.settlement
        num_accepted = sum(it.num_samples for simulation, it in accepted if simulation not in settlement.validation)
        return num_accepted - settlement.num_withdrawn - settlement.buffer.num_never_drawn

    def state_dict(self) -> dict[str, Any]:
        """The ledger, the types of the fields, and the counts."""
        return {
            "ledger": self.state.ledger.state_dict(),
            "dtypes": {name: dtype.str for name, dtype in self.state.dtypes.items()},
            "refused": dict(self.state.refused),
            "withdrawn": self.settlement.num_withdrawn,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a ledger, before anything has begun."""
        assert not self.state.attempts
        self.state.ledger.load_state_dict(state["ledger"])
        self.state.dtypes.update({name: np.dtype(text) for name, text in state["dtypes"].items()})
        self.state.refused.update(state["refused"])
        self.settlement.num_withdrawn = state["withdrawn"]
        self.allocate()

    @staticmethod
    def redealt(states: Sequence[Mapping[str, Any]], rank: int, dealing: Dealing) -> dict[str, Any]:
        """The rank's own ledger, the types everywhere, and the counts on rank 0."""
        refused = sum((Counter(state["refused"]) for state in states), Counter())
        return {
            "ledger": Ledger.redealt([state["ledger"] for state in states], rank, dealing),
            "dtypes": {name: dtype for state in states for name, dtype in state["dtypes"].items()},
            "refused": {} if rank else dict(refused),
            "withdrawn": 0 if rank else sum(state["withdrawn"] for state in states),
        }

    def restore_waiting(self, simulations: Sequence[int]) -> None:
        """Let steps of these simulations wait, in this order, as they did in the buffer that was restored."""
        self.settlement.restore_waiting(self.state.ledger, simulations)

    def restore_ended(self, *, finished: Iterable[int], invalid: Iterable[int]) -> list[int]:
        """Note which simulations had ended in an earlier incarnation.

        Returns:
            Those that have finished without this rank having been told so: the checkpoint was taken in between.
        """
        whole, entries = sorted(finished), self.state.ledger.entries
        for simulation in entries.keys() - set(whole):
            # Its part was saved later than that of another rank, which had not yet received all.
            entries[simulation].finished = False
        news = [simulation for simulation in whole if not self.state.ledger[simulation].finished]
        for simulation in news:
            self._finish(simulation)
        for simulation in whole:
            if simulation in self.settlement.validation:
                self.settlement.validation.complete(simulation)
        for simulation in invalid:
            self.settlement.withdraw(simulation)
        return news

    def _needs_statics(self, simulation: int) -> bool:
        attempt = self.attempt(simulation)
        end_state = "" if attempt is None else attempt.end_state
        if simulation in self.settlement.validation:
            return end_state != SimulationPhase.INVALID
        return attempt is not None and not end_state

    def _finish(self, simulation: int) -> None:
        self.state.ledger[simulation].finished = True
        self.settlement.finish(simulation)

    def _end(self, attempt: AttemptState) -> None:
        attempt.running = False
        for connection in attempt.connections.values():
            connection.close()
        attempt.statics.forget()
        self.settlement.release(attempt)
