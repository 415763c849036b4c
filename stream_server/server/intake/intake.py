"""The intake of one server rank: from the messages of clients to steps in the buffer, and to their acknowledgement.

It has no sockets and no clock; notices, messages and payloads go in, and answers come out. Receiver thread.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stream_server.buffers import Buffer
from stream_server.messages.client import (
    ALL_FIELDS,
    Data,
    End,
    Open,
    Opened,
    Reason,
    Refusal,
)
from stream_server.messages.notices import Share
from stream_server.messages.routing import Dealing
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import RankAccount, Received, WindowCounts
from stream_server.server.intake.admission import Admission
from stream_server.server.intake.assembly import Assembly
from stream_server.server.intake.attempts import (
    AttemptState,
    Connection,
    MessageSeries,
    PartialStep,
    StepRun,
)
from stream_server.server.intake.comparison import AttemptComparison, EqualSimulations, MissingFields
from stream_server.server.intake.credit import CreditPool
from stream_server.server.intake.filling import (
    Array,
    Payload,
    Unfit,
    fill_part,
    fill_shared_part,
    fill_steps,
    keep_rows,
)
from stream_server.server.intake.layout import Place
from stream_server.server.intake.ledger import Ledger, LedgerEntry
from stream_server.server.intake.series import SeriesIntake
from stream_server.server.intake.settlement import Settlement
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.statics import StaticIntake
from stream_server.server.intake.validation_store import ValidationStore

NO_LIMIT = 2**62


class Intake:
    """Admits client ranks, takes their steps, and hands them to the buffer turn by turn.

    A turn is some calls of `take`, then `flush`. `credit_slots` is how many steps of all simulations together have a
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
        credit = CreditPool(size=credit_slots, credit=state.credit)
        self.admission = Admission(state, credit)
        self.settlement = Settlement(
            buffer,
            validation,
            credit,
            state.numbering,
            nonfinite=nonfinite,
            max_unsaved=max_unsaved,
        )
        # One rank is enough: it has some of the steps, or of the simulations. Fields that are sent once may differ.
        is_told = state.rank == 0
        equal = EqualSimulations(buffer.slots, is_open=is_told and not state.static_fields)
        # What came before a restart is not known here.
        is_whole = is_told and state.incarnation == 1
        optional = (it.name for it in state.fields.values() if it.optional and is_whole)
        missing = MissingFields(optional, num_ranks=state.dealing.num_ranks)
        self.observers = self.settlement.observers = (equal, missing)
        self.assembly = Assembly(state, self.settlement)
        self.series = SeriesIntake(state, self.assembly, self.settlement)
        self.comparison = AttemptComparison(state, self.settlement)
        self.statics = StaticIntake(state, buffer, validation, nonfinite=nonfinite)

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
        self.statics.begin(begun)
        self.settlement.check_share(begun)
        if not goes_on:
            self.comparison.begin(begun)
        if begun.share_complete or begun.entry.settled:
            self.settlement.changed[simulation] = begun

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
            self.withdraw(simulation)
        elif end_state == SimulationPhase.STOPPED_EARLY:
            self.settlement.end(simulation)

    def withdraw(self, simulation: int) -> None:
        """Withdraw the samples of a simulation that were not trained on yet."""
        self.series.settle_all()
        self.settlement.withdraw(simulation)

    def open(self, peer: bytes, message: Open) -> Connection | Refusal | None:
        """Admit a client rank, or refuse it; None: it has to wait, and `admit_waiting` will look at it again.

        Raises:
            ConfigError: the types of all fields are known now, and the system refuses the memory for the slots.
        """
        attempt = self.attempt(message.simulation)
        answer = self.admission.answer(peer, message)
        if attempt is not None and not isinstance(answer, Refusal):
            self.settlement.changed[attempt.simulation] = attempt
            if message.rank == 0:
                num_known = len(attempt.entry.settled) - len(attempt.to_compare)
                attempt.num_known = num_known if attempt.num_known is None else attempt.num_known
        if isinstance(answer, Connection):
            self.allocate()
        return answer

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

    def admit_waiting(self) -> list[tuple[bytes, Connection | Refusal]]:
        """The answers to those `Open`s that need not wait any longer."""
        answers = [(peer, self.open(peer, message)) for peer, message in list(self.admission.waiting.items())]
        return [(peer, answer) for peer, answer in answers if answer is not None]

    def has_finished(self, message: Open) -> bool:
        """Whether the client had sent its `End`, and lost the connection before all was acknowledged as settled."""
        attempt = self.attempt(message.simulation)
        return (
            attempt is not None
            and attempt.finished
            and (message.study, message.incarnation) == (self.state.study, self.state.incarnation)
            and message.attempt == attempt.attempt
        )

    def opened(self, connection: Connection) -> Opened:
        """The answer to an `Open` that was admitted."""
        return Opened(
            incarnation=self.state.incarnation, credit=self.state.credit, known=connection.attempt.packed_known().hex()
        )

    def settle_waiting(self, connection: Connection) -> Refusal | None:
        """Settle the steps that waited for what this client rank sends once, or whether it has a part of them."""
        return self._settle(self.statics.put_together(connection.attempt) or self.assembly.complete_waiting(connection))

    def lose(self, connection: Connection) -> None:
        """Forget the parts of incomplete steps that came over a lost connection: they are sent again."""
        self.series.settle(connection.attempt)
        connection.ended = False
        self.assembly.abandon(connection, list(connection.attempt.partial_steps.values()))

    def refuse(self, reason: Reason, text: str, sequence: int | None = None) -> Refusal:
        """Make a refusal, and count it."""
        return self.state.refuse(reason, text, sequence)

    def take(self, connection: Connection, data: Data, header: bytes, payload: Payload) -> Refusal | None:
        """Receive the payload of one message into the slots of its steps.

        The steps are settled in this call or the next `flush`, which may raise.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        self.series.settle(connection.attempt)
        connection.series = None
        if data.static:
            self.settlement.touched[connection.peer] = connection
            refusal = self.statics.take(connection, data, payload)
            return refusal or self.settle_waiting(connection)
        placed = self.assembly.place(connection, data, header)
        if isinstance(placed, MessageSeries):
            connection.series = placed
            return self.series.take(connection, placed, payload)
        self.settlement.touched[connection.peer] = connection
        if isinstance(placed, Refusal):
            return placed
        if not any(placed):
            return None
        num_bytes = 0
        try:
            if data.field == ALL_FIELDS:
                slots = [step.slot for step in placed if step is not None]
                kept = None if len(slots) == len(placed) else [step is not None for step in placed]
                keep = partial(_keep_rows, placed[0], connection.rank)
                fill_steps(self.slots, connection.present(data), slots, payload, data.checksum, kept, keep)
            else:
                assert placed[0] is not None
                num_bytes = self._take_part(connection, placed[0], data, payload)
        except Unfit as problem:
            self.assembly.abandon(connection, placed)
            return self.refuse(problem.reason, str(problem), data.sequence)
        return self._settle(self.assembly.complete(connection, data, placed, num_bytes))

    def _settle(self, whole: list[StepRun] | Refusal) -> Refusal | None:
        if isinstance(whole, Refusal):
            return whole
        for run in whole:
            if run.indices.start in run.attempt.entry.settled:
                self.comparison.compare(run)
            else:
                self.settlement.settle(run)
        return None

    def _take_part(self, connection: Connection, step: PartialStep, data: Data, payload: Payload) -> int:
        place = connection.places[data.field]
        array = self.slots.arrays[place.field]
        if place.shared:
            return fill_shared_part(step.rows, array, place, connection.rank, data, payload)
        num_bytes = fill_part(array, place, data, step.slot, payload)
        if place.row_bytes:
            self.slots.lengths[place.field][step.slot] = (data.offset + num_bytes) // place.row_bytes
        return num_bytes

    def finish(self, connection: Connection, end: End) -> Refusal | None:
        """Note that a client rank has sent all."""
        attempt = connection.attempt
        self.series.settle(attempt)
        problem = self._end_problem(attempt, connection, end)
        if problem is not None:
            return self.refuse(Reason.WRONG_STEP, problem)
        connection.ended = True
        if connection.rank == 0 and connection.rank not in attempt.ends:
            self.state.ledger.duplicates += attempt.num_known or 0
        attempt.ends[connection.rank] = end
        if len(attempt.ends) == attempt.layout.num_ranks:
            attempt.num_expected, attempt.total = end.share, end.total
        self.settlement.check_share(attempt)
        self.settlement.changed[attempt.simulation] = attempt
        self.settlement.touched[connection.peer] = connection
        return None

    def flush(self) -> None:
        """End a turn: settle what has come, and give the buffer what it has room for.

        Raises:
            NonFiniteData: as for `take`.
        """
        self.series.settle_all()
        self.settlement.flush()
        self.statics.free()

    def pop_touched(self) -> list[Connection]:
        """The connections that may be owed an acknowledgement since the last call."""
        touched = list(self.settlement.touched.values())
        self.settlement.touched.clear()
        return touched

    def changes(self) -> list[Share]:
        """The progress of the simulations that have changed since the last call."""
        return self.settlement.changes()

    def complete_changes(self) -> list[Share]:
        """The changes in which this rank's share is complete; the others stay for `changes`."""
        return self.settlement.complete_changes()

    @property
    def has_none_waiting(self) -> bool:
        """No step waits for room in the buffer."""
        return not self.settlement.has_waiting

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
            self.withdraw(simulation)
        return news

    def _finish(self, simulation: int) -> None:
        self.state.ledger[simulation].finished = True
        self.settlement.finish(simulation)

    def _end(self, attempt: AttemptState) -> None:
        self.series.settle(attempt)
        attempt.running = False
        attempt.statics.forget()
        self.settlement.release(attempt)

    def _end_problem(self, attempt: AttemptState, connection: Connection, end: End) -> str | None:
        state = self.state
        if (end.simulation, end.attempt, end.incarnation) != (attempt.simulation, attempt.attempt, state.incarnation):
            return f"the connection was opened for simulation {attempt.simulation}, attempt {attempt.attempt}"
        if end.total > state.numbering.limit:
            return f"the simulation says that it sent {end.total} time steps, but it has only {state.numbering.limit}"
        if attempt.num_expected is not None and end.share > attempt.num_expected:
            text = f"client rank {connection.rank} says that it sent {end.share} steps to server rank {state.rank}"
            return f"{text}, whose share is {attempt.num_expected}"
        for rank, other in attempt.ends.items():
            if (other.share, other.total) != (end.share, end.total):
                return f"client rank {connection.rank} sent {end.total} steps, but rank {rank} sent {other.total}"
        return None


def _keep_rows(step: PartialStep | None, rank: int, place: Place, rows: Array) -> None:
    # A message with a ragged field has a single step, which is not known yet.
    assert step is not None
    keep_rows(step.rows, place, rank, rows, len(rows))
