"""Receives messages that go on with a series: of whole steps, neither decoded nor checked again. Receiver thread.

Why: docs/decisions/0004-receiver-naps.md
"""

from stream_server.messages.client import Refusal
from stream_server.server.intake.assembly import Assembly
from stream_server.server.intake.attempts import AttemptState, Connection, MessageSeries, StepRun
from stream_server.server.intake.filling import Payload, Unfit, fill_steps
from stream_server.server.intake.settlement import Settlement
from stream_server.server.intake.state import IntakeState


class SeriesIntake:
    """Takes the messages of `MessageSeries`, and settles the steps of many of them together."""

    def __init__(self, state: IntakeState, assembly: Assembly, settlement: Settlement) -> None:
        self.state = state
        self.assembly = assembly
        self.settlement = settlement
        self._unsettled: list[AttemptState] = []

    def expected(self, connection: Connection, header: bytes) -> MessageSeries | None:
        """The series that a message goes on with, for `take`; None: it has to be decoded, for `Intake.take`."""
        series = connection.series
        if series is None or not series.goes_on(header):
            return None
        if not series.slots:
            # Two connections may send the same steps; the second one must meet what the first one has settled.
            self.settle(connection.attempt)
            series.credit = self.assembly.credit_from(connection, series.index)
        return series if series.credit >= series.num_steps else None

    def take(self, connection: Connection, series: MessageSeries, payload: Payload) -> Refusal | None:
        """Receive the payload of the next message of a series; its steps are settled together with those of others."""
        slots = self.settlement.claim(series.num_steps)
        try:
            finite = fill_steps(self.settlement.buffer.slots, series.places, slots, payload, series.checksum)
        except Unfit as problem:
            self.settle(connection.attempt)
            self.settlement.touched[connection.peer] = connection
            self.settlement.freed += slots
            connection.series = None
            connection.count_settled(series.num_steps)
            return self.state.refuse(problem.reason, str(problem), series.sequence)
        if not series.slots:
            self.settlement.touched[connection.peer] = connection
            connection.attempt.sender = connection
            self._unsettled.append(connection.attempt)
        series.add(slots, finite)
        return None

    def settle(self, attempt: AttemptState) -> None:
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
        for attempt in self._unsettled:
            self.settle(attempt)
        self._unsettled.clear()
