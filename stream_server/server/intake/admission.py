"""Admission: which client ranks may send, checked against the study and held back while there is no credit. Pure.

Why: docs/decisions/0021-static-fields-of-any-size.md
Why: docs/decisions/0092-types-of-undeclared-fields.md
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from stream_server.messages.client import Block, FieldSpec, Open, Reason, Refusal, SegmentOffer
from stream_server.server.intake.attempts import AttemptState, Connection
from stream_server.server.intake.credit import CreditPool
from stream_server.server.intake.layout import place_of
from stream_server.server.intake.state import IntakeState

DTYPE_OF_THE_NEVER_SENT = "<f8"


class Admission:
    """Answers the `Open` of client ranks. `waiting` are those that will be looked at again, by peer.

    Memory that a client rank shares is apart from its `Open`: over another connection it may be other memory.
    """

    def __init__(self, state: IntakeState, credit: CreditPool) -> None:
        self.state = state
        self.credit = credit
        self.waiting: dict[bytes, tuple[Open, SegmentOffer | None]] = {}

    def answer(self, peer: bytes, message: Open, offer: SegmentOffer | None = None) -> Connection | Refusal | None:
        """Admit a client rank, or refuse it; None: it has to wait."""
        self.waiting.pop(peer, None)
        attempt = self.state.attempts.get(message.simulation)
        refusal = self._out_of_date(message, attempt)
        if refusal is not None:
            return refusal
        assert attempt is not None
        refusal = self._misfit(message, attempt)
        if refusal is not None:
            return refusal
        if message.rank == 0 and attempt.num_known is None:
            attempt.num_known = len(attempt.entry.settled) - len(attempt.to_compare)
        self._learn_dtypes(message, attempt)
        # Without all dtypes there are no slots; the other ranks of this simulation will tell the missing ones.
        # A share that is complete already, maybe in an earlier incarnation, needs no credit.
        has_slots = self.state.dtypes_known and (attempt.share_complete or self.credit.reserve(attempt))
        # Its credit begins anew with the connection: what it has sent over a lost one must not take up any of it.
        has_credit = message.rank not in attempt.connections or not attempt.num_waiting
        if not (has_slots and has_credit):
            self.waiting[peer] = message, offer
            return None
        return self._connection(peer, message, attempt)

    def forget(self, message: Open) -> None:
        """Drop an `Open` that waits, since the same client rank has said it again over another connection."""
        for peer in [peer for peer, (other, _) in self.waiting.items() if other == message]:
            del self.waiting[peer]

    def _out_of_date(self, message: Open, attempt: AttemptState | None) -> Refusal | None:
        state = self.state
        if message.study != state.study:
            text = f"this is study {state.study}, but the message is for study {message.study}"
            return state.refuse(Reason.WRONG_STUDY, text)
        if message.incarnation != state.incarnation:
            text = f"this is incarnation {state.incarnation}, the message is for {message.incarnation}: say Hello again"
            return state.refuse(Reason.STALE_INCARNATION, text)
        if attempt is None:
            return state.refuse(Reason.UNKNOWN_SIMULATION, f"simulation {message.simulation} is not running")
        if not attempt.running or message.attempt != attempt.attempt:
            return state.refuse(Reason.STALE_ATTEMPT, attempt.why_refused(message.attempt))
        return None

    def _misfit(self, message: Open, attempt: AttemptState) -> Refusal | None:
        layout = attempt.layout
        if layout.blocks and layout.num_ranks != message.num_ranks:
            text = f"client rank {message.rank} says {message.num_ranks} ranks, others said {layout.num_ranks}"
            return self.state.refuse(Reason.WRONG_BLOCKS, text)
        if message.num_ranks > self.state.client_ranks:
            text = (
                f"client rank {message.rank} says {message.num_ranks} ranks, and at most {self.state.client_ranks} are "
                "expected: simulation.ranks says how many a simulation has"
            )
            return self.state.refuse(Reason.WRONG_BLOCKS, text)
        fields, static_fields = self.state.fields, self.state.static_fields
        problems = [self._field_problem(block, fields) for block in message.blocks]
        problems += [self._field_problem(block, static_fields) for block in message.static_blocks]
        problem = next(filter(None, problems), None)
        if problem is not None:
            return self.state.refuse(Reason.WRONG_FIELDS, problem)
        layout.num_ranks = attempt.statics.layout.num_ranks = message.num_ranks
        problem = layout.add(message.rank, message.blocks)
        problem = problem or attempt.statics.layout.add(message.rank, message.static_blocks)
        return None if problem is None else self.state.refuse(Reason.WRONG_BLOCKS, problem)

    def _field_problem(self, block: Block, fields: Mapping[str, FieldSpec]) -> str | None:
        if block.field in {**self.state.fields, **self.state.static_fields} and block.field not in fields:
            once = block.field in self.state.static_fields
            return f"field {block.field} is sent {'once per simulation' if once else 'with each time step'}"
        if block.field not in fields:
            return f"the study has no field {block.field}, only {', '.join(fields)}"
        kept = self.state.dtypes.get(block.field)
        if kept is not None and not np.can_cast(np.dtype(block.dtype), kept, "same_kind"):
            return f"field {block.field} is kept as {kept}, which {np.dtype(block.dtype)} cannot become"
        return None

    def _learn_dtypes(self, message: Open, attempt: AttemptState) -> None:
        for block in (*message.blocks, *message.static_blocks):
            self.state.dtypes.setdefault(block.field, np.dtype(block.dtype))
        for layout in (attempt.layout, attempt.statics.layout):
            for name in layout.fields if layout.complete else ():
                self.state.dtypes.setdefault(name, np.dtype(DTYPE_OF_THE_NEVER_SENT))

    def _connection(self, peer: bytes, message: Open, attempt: AttemptState) -> Connection:
        fields, dtypes = self.state.fields, self.state.dtypes
        places = tuple(
            place_of(block, dtypes[block.field], ragged=fields[block.field].ragged, num_ranks=message.num_ranks)
            for block in message.blocks
        )
        static_fields = self.state.static_fields
        static_places = tuple(
            # What a client rank has of a ragged one is put together from it like a field of its own.
            place_of(
                replace(block, shape=block.count) if static_fields[block.field].ragged else block, dtypes[block.field]
            )
            for block in message.static_blocks
        )
        everything = (1 << len(places)) - 1
        optional = sum(1 << i for i, place in enumerate(places) if self.state.fields[place.field].optional)
        connection = Connection(
            peer=peer,
            opening=message,
            attempt=attempt,
            rank=message.rank,
            places=places,
            static_places=static_places,
            required=everything & ~optional,
            everything=everything,
            alone=message.num_ranks == 1,
            static_bytes=[0] * len(static_places),
        )
        attempt.connections[message.rank] = connection
        return connection
