"""Assembly: takes what client ranks send, says where their steps belong, and when steps are all there.

Receiver thread.

Why: docs/decisions/0004-receiver-naps.md
Why: docs/decisions/0019-ragged-rows-of-client-ranks.md
"""

from collections.abc import Iterable, Sequence
from functools import partial

from stream_server.messages.client import ALL_FIELDS, Data, End, Reason, Refusal
from stream_server.server.intake.attempts import (
    BEFORE,
    BEHIND,
    AttemptState,
    Connection,
    MessageSeries,
    PartialStep,
    StepRun,
)
from stream_server.server.intake.filling import (
    Array,
    Payload,
    Unfit,
    fill_part,
    fill_shared_part,
    fill_steps,
    keep_rows,
    put_rows_together,
)
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.layout import Place
from stream_server.server.intake.statics import StaticIntake

Problem = tuple[Reason, str]


class Assembly:
    """Puts steps together out of what client ranks send.

    A simulation may have as many steps under way as it has credit: in a slot, but not yet in the stream. Steps of a
    `MessageSeries` are neither decoded nor checked again, and settled together with those of other messages.
    """

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.state = intake.state
        self.settlement = intake.settlement
        self.statics = StaticIntake(intake.state, intake.settlement)
        self._with_series: list[AttemptState] = []

    def expected(self, connection: Connection, header: bytes) -> MessageSeries | None:
        """The series that a message goes on with, for `take_next`; None: it has to be decoded, for `take`."""
        series = connection.series
        if series is None or not series.goes_on(header):
            return None
        if not series.slots:
            # Two connections may send the same steps; the second one must meet what the first one has settled.
            self.settle_series(connection.attempt)
            series.credit = self.credit_from(connection, series.index)
        return series if series.credit >= series.num_steps else None

    def take_next(self, connection: Connection, series: MessageSeries, payload: Payload) -> Refusal | None:
        """Receive the payload of the next message of a series; its steps are settled together with those of others."""
        slots = self.settlement.claim(series.num_steps)
        try:
            blocks = connection.payload(series, series.places, payload)
            finite = fill_steps(self.settlement.buffer.slots, series.places, slots, blocks, series.checksum)
        except Unfit as problem:
            self.settle_series(connection.attempt)
            self.settlement.touched[connection.peer] = connection
            self.settlement.freed += slots
            connection.series = None
            connection.count_settled(series.num_steps)
            return self.state.refuse(problem.reason, str(problem), series.sequence)
        if not series.slots:
            connection.attempt.sender = connection
            self._with_series.append(connection.attempt)
        series.add(slots, finite)
        return None

    def settle_series(self, attempt: AttemptState) -> None:
        """Settle the steps of a series of this simulation that are received, if there are any.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        connection, attempt.sender = attempt.sender, None
        if connection is None or connection.series is None:
            return
        series = connection.series
        indices, slots, finite = series.take()
        # Steps that are looked at one by one may be settled out of their order, but a message only as a whole.
        size = len(slots) if finite else series.num_steps
        for start in range(0, len(slots), size):
            part = slice(start, start + size)
            message = connection.count(size, size // series.num_steps)
            origins = [(connection, message)]
            run = StepRun(attempt, attempt.reservation, indices[part], slots[part], series.absent, origins)
            self.settlement.settle(run, finite=finite)

    def settle_all(self) -> None:
        """Settle the received steps of all series."""
        for attempt in self._with_series:
            self.settle_series(attempt)
        self._with_series.clear()

    def take(self, connection: Connection, data: Data, header: bytes, payload: Payload) -> Refusal | None:
        """Receive the payload of one message into the slots of its steps.

        The steps are settled in this call, or by `settle_all`.

        Raises:
            NonFiniteData: a sample has NaN or infinity, and the study is to stop then.
        """
        self.settle_series(connection.attempt)
        connection.series = None
        self.settlement.touched[connection.peer] = connection
        if data.static:
            refusal = self.statics.take(connection, data, payload)
            return refusal or self.settle_waiting(connection)
        placed = self.place(connection, data, header)
        if isinstance(placed, MessageSeries):
            connection.series = placed
            return self.take_next(connection, placed, payload)
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
                places = connection.present(data)
                blocks = connection.payload(data, places, payload)
                fill_steps(self.settlement.buffer.slots, places, slots, blocks, data.checksum, kept, keep)
            else:
                assert placed[0] is not None
                num_bytes = self._take_part(connection, placed[0], data, payload)
        except Unfit as problem:
            self.abandon(connection, placed)
            return self.state.refuse(problem.reason, str(problem), data.sequence)
        return self._settle(self.complete(connection, data, placed, num_bytes))

    def settle_waiting(self, connection: Connection) -> Refusal | None:
        """Settle the steps that waited for what this client rank sends once, or whether it has a part of them."""
        return self._settle(self.statics.put_together(connection.attempt) or self.complete_waiting(connection))

    def finish(self, connection: Connection, end: End) -> Refusal | None:
        """Note that a client rank has sent all."""
        attempt = connection.attempt
        self.settle_series(attempt)
        problem = self._end_problem(attempt, connection, end)
        if problem is not None:
            return self.state.refuse(Reason.WRONG_STEP, problem)
        connection.ended = True
        if connection.rank == 0 and connection.rank not in attempt.ends:
            self.state.ledger.duplicates += attempt.num_known or 0
        attempt.ends[connection.rank] = end
        if len(attempt.ends) == attempt.layout.num_ranks:
            attempt.num_expected, attempt.total = end.share, end.total
        self.settlement.check_share(attempt)
        self.settlement.changed.add(attempt.simulation)
        self.settlement.touched[connection.peer] = connection
        return None

    def lose(self, connection: Connection) -> None:
        """Forget the parts of incomplete steps that came over a lost connection: they are sent again."""
        self.settle_series(connection.attempt)
        connection.ended = False
        self.abandon(connection, list(connection.attempt.partial_steps.values()))

    def place(
        self, connection: Connection, data: Data, header: bytes
    ) -> MessageSeries | list[PartialStep | None] | Refusal:
        """Check a message, and say where its steps belong.

        Returns:
            The series that it begins, if no other message has a part of its steps and all of them are new. Otherwise
            the steps, with None for those known already; once the payload is in their slots, `complete` tells which are
            whole, or if it is not what it should be, `abandon` them.
        """
        state, attempt, num = self.state, connection.attempt, data.num_steps
        if data.sequence != connection.next_sequence:
            text = f"Data message {data.sequence} came where {connection.next_sequence} was expected"
            return state.refuse(Reason.MALFORMED, text, data.sequence)
        problem = self._problem(connection, data)
        if problem is not None:
            return self._refuse(connection, data, *problem)
        stride = state.dealing.stride
        end = data.index + num * stride
        indices = range(data.index, end, stride)
        is_alone = connection.alone and data.field == ALL_FIELDS and not attempt.partial_steps
        if not is_alone or attempt.entry.settled.has_any(indices):
            return self._place_steps(connection, data, indices)
        if attempt.num_waiting + num > state.credit:
            return self._beyond_credit(connection, data, attempt.num_waiting + num)
        return MessageSeries(
            header=header[:BEFORE] + header[BEHIND:],
            places=connection.present(data),
            absent=self._absent(connection, data),
            in_segment=data.in_segment,
            checksum=data.checksum,
            stride=stride,
            num_steps=num,
            sequence=data.sequence,
            index=data.index,
            credit=num + self.credit_from(connection, end, num_pending=num),
        )

    def credit_from(self, connection: Connection, index: int, *, num_pending: int = 0) -> int:
        """Number of steps from `index` on that need no single check: all are new, and there is credit for them.

        `num_pending` steps before them are received and not settled yet.
        """
        attempt, numbering = connection.attempt, self.state.numbering
        if not attempt.running or connection.ended or attempt.partial_steps or index < attempt.entry.settled.stop:
            return 0
        left = -(-(numbering.limit - index) // self.state.dealing.stride)
        return max(0, min(self.state.credit - attempt.num_waiting - num_pending, left))

    def complete(
        self, connection: Connection, data: Data, steps: Iterable[PartialStep | None], num_bytes: int
    ) -> list[StepRun] | Refusal:
        """Note that the payload of these steps is in their slots; returns those that are whole now, to be settled.

        `num_bytes` are those of a part.
        """
        if data.field != ALL_FIELDS:
            problem = self._part_problem(connection, data, steps, num_bytes)
            if problem is not None:
                return problem
            if not data.last:
                return []
        return self._whole_steps(connection, data, steps)

    def complete_waiting(self, connection: Connection) -> list[StepRun] | Refusal:
        """The steps of this simulation that waited only for the fields that are sent once.

        Or to know that no other client rank sends a part of them.
        """
        attempt, layout = connection.attempt, connection.attempt.layout
        if not attempt.partial_steps or not layout.complete or not self._has_statics(attempt):
            return []
        steps = [step for step in attempt.partial_steps.values() if step.senders == layout.senders]
        for step in steps:
            if torn := step.torn_field():
                for sender in [it for it in attempt.connections.values() if step.senders >> it.rank & 1]:
                    self.abandon(sender, [step])
                return self._refuse_torn(step, torn)
        return [self._run_of(step) for step in steps]

    def abandon(self, connection: Connection, steps: Iterable[PartialStep | None]) -> None:
        """Forget what this client rank sent of these steps."""
        for step in steps:
            if step is None:
                continue
            step.forget(connection.rank)
            for origin in [origin for origin in step.origins if origin[0] is connection]:
                step.origins.remove(origin)
                connection.move_mark(origin[1], 1)
            if not step.senders and not step.origins:
                del step.attempt.partial_steps[step.index]
                self.settlement.freed.append(step.slot)

    def _settle(self, whole: list[StepRun] | Refusal) -> Refusal | None:
        if isinstance(whole, Refusal):
            return whole
        for run in whole:
            self.intake.settle(run)
        return None

    def _take_part(self, connection: Connection, step: PartialStep, data: Data, payload: Payload) -> int:
        place = connection.places[data.field]
        array = self.settlement.buffer.slots.arrays[place.field]
        if place.shared:
            return fill_shared_part(step.rows, array, place, connection.rank, data, payload)
        num_bytes = fill_part(array, place, data, step.slot, payload)
        if place.row_bytes:
            self.settlement.buffer.slots.lengths[place.field][step.slot] = (data.offset + num_bytes) // place.row_bytes
        return num_bytes

    def _problem(self, connection: Connection, data: Data) -> Problem | None:
        """Compare the next message of a connection with what that was opened for."""
        state, attempt, numbering = self.state, connection.attempt, self.state.numbering
        last = data.index + (data.num_steps - 1) * state.dealing.stride
        if data.incarnation != state.incarnation:
            text = f"this is incarnation {state.incarnation}, the message is for {data.incarnation}"
            return Reason.STALE_INCARNATION, text
        if (data.simulation, data.attempt) != (attempt.simulation, attempt.attempt):
            text = f"the connection was opened for simulation {attempt.simulation}, attempt {attempt.attempt}"
            return Reason.STALE_ATTEMPT, text
        if not attempt.running:
            return Reason.STALE_ATTEMPT, state.attempts[attempt.simulation].why_refused(attempt.attempt)
        if connection.ended:
            return Reason.WRONG_STEP, f"simulation {attempt.simulation} said that it had sent all"
        if data.num_steps > state.credit:
            text = f"{data.num_steps} steps in one message, but the credit is {state.credit}"
            return Reason.BEYOND_CREDIT, text
        if last >= numbering.limit:
            end = numbering.label(numbering.limit - 1)
            return Reason.WRONG_STEP, f"time step {numbering.label(last)} is behind the last, {end}"
        if state.dealing.server_rank(attempt.simulation, data.index) != state.rank:
            return Reason.WRONG_STEP, f"time step {numbering.label(data.index)} belongs to another server rank"
        if not connection.has_statics:
            names = ", ".join(place.field for place in connection.static_places)
            text = f"time step {numbering.label(data.index)} came before all of {names}, sent once per simulation"
            return Reason.WRONG_STEP, text
        if data.present & ~connection.everything:
            return Reason.WRONG_BLOCKS, f"only {len(connection.places)} blocks were opened"
        if lacking := connection.required & ~data.present:
            missing = [place.field for i, place in enumerate(connection.places) if lacking >> i & 1]
            return Reason.WRONG_FIELDS, f"time step {numbering.label(data.index)} lacks {', '.join(missing)}"
        if data.num_steps > 1 and any(place.row_bytes for place in connection.present(data)):
            text = f"{data.num_steps} time steps in one message, but a field differs from step to step: send one"
            return Reason.MALFORMED, text
        if data.field != ALL_FIELDS and (gap := self._gap(connection, data)):
            return Reason.WRONG_STEP, gap
        return None

    def _gap(self, connection: Connection, data: Data) -> str:
        """Say what is missing before this part of a block; "" if nothing is, or if the block begins anew."""
        step = connection.attempt.partial_steps.get(data.index)
        num_bytes = 0 if step is None else step.parts.get((connection.rank, data.field), 0)
        # What this client rank has sent as a whole it may send again, also while the parts of others are missing.
        is_whole = step is not None and step.senders >> connection.rank & 1
        known = connection.attempt.knows(data.index) or is_whole
        if data.offset < connection.places[data.field].num_bytes and (known or data.offset in (0, num_bytes)):
            return ""
        label = self.state.numbering.label(data.index)
        return f"a part of time step {label} begins at byte {data.offset}, but {num_bytes} have come"

    def _place_steps(self, connection: Connection, data: Data, indices: range) -> list[PartialStep | None] | Refusal:
        attempt, sender = connection.attempt, 1 << connection.rank
        missing = [i for i in indices if not attempt.knows(i) and i not in attempt.partial_steps]
        if attempt.num_under_way + len(missing) > self.state.credit:
            return self._beyond_credit(connection, data, attempt.num_under_way + len(missing))
        if missing:
            for index, slot in zip(missing, self.settlement.claim(len(missing)), strict=True):
                attempt.partial_steps[index] = PartialStep(attempt, attempt.reservation, index, slot)
        here = (attempt.partial_steps.get(i) for i in indices)
        steps = [None if step is None or step.senders & sender else step for step in here]
        self._count_duplicates(connection, data, steps)
        self._count_message(connection, data, steps)
        return steps

    def _refuse(self, connection: Connection, data: Data, reason: Reason, text: str) -> Refusal:
        connection.count_settled(data.num_steps)
        return self.state.refuse(reason, text, data.sequence)

    def _beyond_credit(self, connection: Connection, data: Data, num: int) -> Refusal:
        text = (
            f"simulation {connection.attempt.simulation} would have {num} steps under way, but its credit is "
            f"{self.state.credit}; all its ranks must send the same steps in the same order"
        )
        return self._refuse(connection, data, Reason.BEYOND_CREDIT, text)

    def _absent(self, connection: Connection, data: Data) -> tuple[str, ...]:
        places, fields = connection.places, self.state.fields
        if data.present == connection.everything and len(places) == len(fields):
            return ()
        present = {place.field for place in connection.present(data)}
        return tuple(name for name in fields if name not in present)

    def _count_duplicates(self, connection: Connection, data: Data, steps: Sequence[PartialStep | None]) -> None:
        num = steps.count(None)
        if not num:
            return
        connection.attempt.received += num
        # One sample may come in parts and from many ranks; it is one duplicate.
        if connection.rank == 0 and data.last:
            self.state.ledger.duplicates += num
            connection.attempt.repeated += num
        self.settlement.changed.add(connection.attempt.simulation)

    def _count_message(self, connection: Connection, data: Data, steps: Sequence[PartialStep | None]) -> None:
        wanted = [step for step in steps if step is not None]
        is_further_part = data.field != ALL_FIELDS and any(
            origin[0] is connection for step in wanted[:1] for origin in step.origins
        )
        if not wanted or is_further_part:
            # A further part of a step is settled with the first one.
            connection.count_settled(data.num_steps)
            return
        message = connection.count(len(wanted))
        for step in wanted:
            step.origins.append((connection, message))

    def _whole_steps(
        self, connection: Connection, data: Data, steps: Iterable[PartialStep | None]
    ) -> list[StepRun] | Refusal:
        places, layout, sender = connection.present(data), connection.attempt.layout, 1 << connection.rank
        whole: list[StepRun] = []
        for step in steps:
            if step is None:
                continue
            step.senders |= sender
            for place in places:
                step.present[place.field] = step.present.get(place.field, 0) | sender
            if step.senders == layout.senders and layout.complete and self._has_statics(connection.attempt):
                if torn := step.torn_field():
                    # The message is refused as a whole: its steps come again with the next attempt.
                    self.abandon(connection, [step])
                    for run in whole:
                        self.settlement.drop(run)
                    return self._refuse_torn(step, torn, data.sequence)
                whole.append(self._run_of(step))
        return whole

    def _refuse_torn(self, step: PartialStep, field: str, sequence: int | None = None) -> Refusal:
        text = f"only some client ranks sent field {field} in time step {self.state.numbering.label(step.index)}"
        return self.state.refuse(Reason.WRONG_FIELDS, text, sequence)

    def _part_problem(
        self, connection: Connection, data: Data, steps: Iterable[PartialStep | None], num_bytes: int
    ) -> Refusal | None:
        for step in steps:
            if step is None:
                continue
            step.parts[connection.rank, data.field] = data.offset + num_bytes
            for i, place in enumerate(connection.places if data.last else ()):
                if data.present >> i & 1 and not place.fits(step.parts.get((connection.rank, i), 0)):
                    self.abandon(connection, [step])
                    label = self.state.numbering.label(step.index)
                    text = f"the last part of time step {label} came before all of field {place.field}"
                    return self.state.refuse(Reason.WRONG_STEP, text, data.sequence)
        return None

    def _has_statics(self, attempt: AttemptState) -> bool:
        """Static fields are kept, and no rows of this attempt wait to be compared with them."""
        if not self.state.static_fields:
            return True
        return attempt.simulation in self.settlement.buffer.slots.statics and not attempt.statics.rows

    def _run_of(self, step: PartialStep) -> StepRun:
        del step.attempt.partial_steps[step.index]
        put_rows_together(self.settlement.buffer.slots, step.slot, step.rows)
        absent = tuple(name for name in self.state.fields if name not in step.present)
        indices = range(step.index, step.index + 1)
        return StepRun(step.attempt, step.reservation, indices, [step.slot], absent, step.origins)

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
