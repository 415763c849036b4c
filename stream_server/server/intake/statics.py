"""Receives the fields that are sent once per simulation, and keeps them as long as there are samples of it.

Receiver thread.
"""

import numpy as np

from stream_server.buffers import Buffer
from stream_server.errors import NonFiniteData
from stream_server.messages.client import Data, Reason, Refusal
from stream_server.server.intake.attempts import AttemptState, Connection
from stream_server.server.intake.filling import Array, Payload, Unfit, all_finite, fill_part
from stream_server.server.intake.layout import Place
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore

NEVER = -1


class StaticIntake:
    """Puts the static fields of simulations together out of what client ranks send.

    Every connection brings its blocks before its first step, each time that it is opened. What was kept of a simulation
    stays: a later connection, of the same attempt or of another one, must bring the same values. So the samples of
    a simulation never differ in what they share. `nonfinite` is as for `Intake`.
    """

    def __init__(self, state: IntakeState, buffer: Buffer, validation: ValidationStore, *, nonfinite: str) -> None:
        self.state = state
        self.buffer = buffer
        self.validation = validation
        self.nonfinite = nonfinite

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

    def free(self) -> None:
        """Let go of the static fields of which no sample is here, or will come."""
        if self.state.static_fields:
            self.buffer.free_statics(self._may_be_needed)

    def _may_be_needed(self, simulation: int) -> bool:
        attempt = self.state.attempts.get(simulation)
        end_state = "" if attempt is None else attempt.end_state
        if simulation in self.validation:
            return end_state != "invalid"
        return attempt is not None and not end_state

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
        kept = statics.find(attempt.simulation)
        array = self._array(attempt, place.field) if kept is None else np.empty_like(kept[place.field])
        num_bytes = fill_part(array[np.newaxis], place, data, 0, payload)
        connection.static_bytes[data.field] += num_bytes
        if kept is not None:
            _compare(attempt, place, data.offset, num_bytes, kept[place.field], array)
        elif connection.has_statics:
            self._settle(attempt, connection)

    def _array(self, attempt: AttemptState, name: str) -> Array:
        """The memory of a field that is not complete yet."""
        arrays = attempt.statics.arrays
        if name not in arrays:
            arrays[name] = np.empty(self.state.static_fields[name].shape, self.state.dtypes[name])
        return arrays[name]

    def _settle(self, attempt: AttemptState, connection: Connection) -> None:
        """Keep the fields, if this client rank was the last that has a part of them."""
        statics = attempt.statics
        for place in connection.static_places:
            self._check_finite(attempt, place)
            statics.senders[place.field] = statics.senders.get(place.field, 0) | 1 << connection.rank
        if statics.complete:
            self.buffer.slots.statics.put(attempt.simulation, statics.arrays)
            statics.arrays = {}

    def _check_finite(self, attempt: AttemptState, place: Place) -> None:
        if self.nonfinite == "keep" or all_finite(
            np.ascontiguousarray(attempt.statics.arrays[place.field][place.slices])
        ):
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
        raise Unfit(
            Reason.WRONG_FIELDS,
            f"simulation {attempt.simulation} has sent other values of field {place.field} before, which samples in "
            "the study share: each attempt must make the same, from the parameters and with a fixed seed",
        )


def _elements(block: Array, start: int, num: int) -> Array:
    """Some elements of a block in C order, of which no more are copied than these."""
    in_order = block.reshape(-1) if block.flags.c_contiguous else block.flat
    return in_order[start : start + num]
