"""Receives the fields that are sent once per simulation, and keeps them as long as there are samples of it.

Receiver thread.

Why: docs/decisions/0020-fields-once-per-simulation.md
"""

from collections import Counter

import numpy as np

from stream_server.buffers.statics import FieldArrays
from stream_server.errors import NonFiniteData
from stream_server.messages.client import Data, Reason, Refusal
from stream_server.server.intake.attempts import AttemptState, Connection
from stream_server.server.intake.filling import Array, Payload, Unfit, all_finite, fill_part
from stream_server.server.intake.layout import Place
from stream_server.server.intake.settlement import Settlement
from stream_server.server.intake.state import IntakeState

NEVER = -1


class StaticIntake:
    """Puts the static fields of simulations together out of what client ranks send.

    Every connection brings its blocks before its first step, each time that it is opened. What was kept of a simulation
    stays: a later connection, of the same attempt or of another one, must bring the same values. So the samples of
    a simulation never differ in what they share. `nonfinite` is as for `Intake`.

    Where the rows of a ragged field lie that a client rank sends, follows from the blocks of those before it. So they
    are kept as they come until they can be put together, or compared.
    """

    def __init__(self, state: IntakeState, settlement: Settlement) -> None:
        self.state = state
        self.buffer = settlement.buffer
        self.nonfinite = settlement.nonfinite

    def take(self, connection: Connection, data: Data, payload: Payload) -> Refusal | None:
        """Receive a part of a block.

        Raises:
            NonFiniteData: a field has NaN or infinity, and the study is to stop then.
        """
        if data.sequence != connection.next_sequence:
            text = f"Data message {data.sequence} came where {connection.next_sequence} was expected"
            return self.state.refuse(Reason.MALFORMED, text, data.sequence)
        connection.count_settled(data.num_steps)
        try:
            self._take(connection, data, payload)
        except Unfit as problem:
            # The client may have sent its first steps already, which must not be taken.
            connection.static_bytes = [NEVER] * len(connection.static_places)
            return self.state.refuse(problem.reason, str(problem), data.sequence)
        return None

    def put_together(self, attempt: AttemptState) -> Refusal | None:
        """Keep the fields of a simulation, if all of them are there, or compare the rows that came of ragged ones.

        Both may have waited for another client rank to say how many rows it has.
        """
        if not self.state.static_fields:
            return None
        partial, statics = attempt.statics, self.buffer.slots.statics
        if attempt.simulation not in statics and attempt.running and partial.complete:
            statics.put(attempt.simulation, partial.arrays | self._joined(attempt))
            partial.arrays = {}
        try:
            # Of those that are just put together, too: one that comes again over a new connection may not be whole.
            _compare_rows(attempt, statics.find(attempt.simulation))
        except Unfit as problem:
            return self.state.refuse(problem.reason, str(problem))
        return None

    def _take(self, connection: Connection, data: Data, payload: Payload) -> None:
        attempt, statics = connection.attempt, self.buffer.slots.statics
        if (data.simulation, data.attempt, data.incarnation) != (
            attempt.simulation,
            attempt.attempt,
            self.state.incarnation,
        ):
            raise Unfit(Reason.STALE_ATTEMPT, f"the connection was opened for simulation {attempt.simulation}")
        if attempt.finished and attempt.simulation not in statics:
            # The last step has come at another rank, and no sample is here any more: there is nothing to compare with.
            return
        if not attempt.running and not attempt.finished:
            raise Unfit(Reason.STALE_ATTEMPT, self.state.attempts[attempt.simulation].why_refused(attempt.attempt))
        if data.field >= len(connection.static_places):
            text = f"only {len(connection.static_places)} blocks of fields that are sent once were opened"
            raise Unfit(Reason.WRONG_BLOCKS, text)
        place, at = connection.static_places[data.field], connection.static_bytes[data.field]
        if data.offset != at or at == place.num_bytes:
            text = (
                f"a part of field {place.field} begins at byte {data.offset}, but {at} of {place.num_bytes} have come"
            )
            raise Unfit(Reason.WRONG_STEP, text)
        kept, is_ragged = statics.find(attempt.simulation), place.field in statics.ragged
        array = self._array(connection, place) if kept is None or is_ragged else np.empty_like(kept[place.field])
        num_bytes = fill_part(array[np.newaxis], place, data, 0, payload)
        connection.static_bytes[data.field] += num_bytes
        if kept is not None and not is_ragged:
            _compare(attempt, place, data.offset, num_bytes, kept[place.field], array)
        elif kept is None and connection.has_statics:
            for sent in connection.static_places:
                self._check_finite(connection, sent)
                senders = attempt.statics.senders
                senders[sent.field] = senders.get(sent.field, 0) | 1 << connection.rank

    def _array(self, connection: Connection, place: Place) -> Array:
        """The memory of what a client rank sends of a field, of one of one shape with what the others do."""
        name, partial = place.field, connection.attempt.statics
        spec, dtype = self.state.static_fields[name], self.state.dtypes[name]
        if spec.ragged:
            of = name, connection.rank
            if of not in partial.rows:
                partial.rows[of] = np.empty(place.count, dtype)
            return partial.rows[of]
        if name not in partial.arrays:
            partial.arrays[name] = np.empty(spec.shape, dtype)
        return partial.arrays[name]

    def _joined(self, attempt: AttemptState) -> FieldArrays:
        """The ragged fields of a simulation, with the rows of all client ranks in the order of the ranks."""
        rows, joined = attempt.statics.rows, {}
        for name, spec in self.state.static_fields.items():
            if spec.ragged:
                nothing = np.empty((0, *spec.shape[1:]), self.state.dtypes[name])
                joined[name] = np.concatenate([nothing, *(rows[of] for of in sorted(rows) if of[0] == name)])
        return joined

    def _check_finite(self, connection: Connection, place: Place) -> None:
        attempt, array = connection.attempt, self._array(connection, place)
        if self.nonfinite == "keep" or all_finite(np.ascontiguousarray(array[place.slices])):
            return
        text = (
            f"simulation {attempt.simulation} sent NaN or infinity in field {place.field}, which all its samples share"
        )
        if self.nonfinite == "stop":
            raise NonFiniteData(f'{text}, and training.nonfinite is "stop"')
        raise Unfit(Reason.WRONG_FIELDS, f'{text}: write "training": {{"nonfinite": "keep"}} to train on them')


def _compare(attempt: AttemptState, place: Place, offset: int, num_bytes: int, kept: Array, array: Array) -> None:
    start, num = offset // place.wire.itemsize, num_bytes // place.wire.itemsize
    one, other = (_elements(it[place.slices], start, num) for it in (kept, array))
    if one.tobytes() != other.tobytes():
        raise _other_values(attempt, place)


def _compare_rows(attempt: AttemptState, kept: FieldArrays | None) -> None:
    """Compare the rows that are whole and whose place is known, and forget those that are the same."""
    pending, starts = attempt.statics.rows, Counter[str]()
    for rank in range(attempt.layout.num_ranks if pending else 0):
        connection = attempt.connections.get(rank)
        if connection is None or kept is None:
            return
        for place in connection.static_places:
            name, start = place.field, starts[place.field]
            starts[name] += place.count[0]
            rows = pending.get((name, rank))
            if rows is None or not connection.has_statics:
                continue
            if rows.tobytes() != kept[name][start : starts[name]].tobytes():
                # Its first steps may be here already. As long as rows wait, no step of the attempt is whole.
                connection.static_bytes = [NEVER] * len(connection.static_places)
                raise _other_values(attempt, place)
            del pending[name, rank]


def _other_values(attempt: AttemptState, place: Place) -> Unfit:
    return Unfit(
        Reason.WRONG_FIELDS,
        f"simulation {attempt.simulation} has sent other values of field {place.field} before, which samples in "
        "the study share: each attempt must make the same, from the parameters and with a fixed seed",
    )


def _elements(block: Array, start: int, num: int) -> Array:
    """Some elements of a block in C order, of which no more are copied than these."""
    in_order = block.reshape(-1) if block.flags.c_contiguous else block.flat
    return in_order[start : start + num]
