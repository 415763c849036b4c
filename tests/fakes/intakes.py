"""Intakes for the tests, without a real buffer, and clients that speak to them without sockets."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from stream_server.messages import wire
from stream_server.messages.client import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    Block,
    Data,
    FieldSpec,
    Message,
    Open,
    Reason,
    Refusal,
    Routing,
    TimeSteps,
)
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.intake.attempts import Connection, MessageSeries, StepRun
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.state import MAX_UNSAID_RANKS, IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.dispatcher import Dispatcher

INCARNATION = 0
U = FieldSpec(name="u", shape=(4,), dtype="<f8")
OPTIONAL = FieldSpec(name="v", shape=(4,), dtype="<f8", optional=True)
NUM_SLOTS = 1000


class Waiting:
    """A buffer that never has room, and whose slots never run out; the tests say what has found room."""

    def __init__(self) -> None:
        self.slots = SimpleNamespace(
            arrays={},
            simulation_ids=np.zeros(NUM_SLOTS, np.int64),
            time_steps=np.zeros(NUM_SLOTS, np.int64),
            allocate=lambda dtypes: None,
            leave_out=lambda name, slots: None,
        )
        self.freed: list[int] = []
        self.windows = None
        self._next = count()

    def claim(self, num: int) -> list[int]:
        return [next(self._next) for _ in range(num)]

    def discard(self, slots: Sequence[int]) -> None:
        self.freed += slots

    def enqueue(self, slots: Sequence[int]) -> None:
        pass

    def admit(self) -> list[int]:
        return []

    def withdraw(self, simulation_id: int) -> int:
        return 0

    def steps_to_compare(self, simulation_id: int) -> dict[int, int]:
        return {}

    def leave_out(self, simulation_id: int, time_step: int) -> None:
        pass

    def end(self, simulation_ids: Sequence[int]) -> None:
        pass

    def close(self, error: BaseException | None = None) -> None:
        raise NotImplementedError


class ClientIntake(Intake):
    """An intake, and the dispatcher by which clients speak to it; `answers` has what each was told."""

    def __init__(self, state: IntakeState, **others: Any) -> None:
        super().__init__(state, **others)
        self.answers: defaultdict[bytes, list[Message]] = defaultdict(list)
        self.dispatcher = Dispatcher(
            intake=self,
            access=CurveAccess(KeyPair(public="", secret="")),
            reply=lambda peer, message: self.answers[peer].append(message),
            tell_main=lambda event: None,
        )
        self.assembly = self.dispatcher.assembly


def make(*, num: int | None = 8, credit: int = 4, credit_slots: int = 8, **others: object) -> ClientIntake:
    """An intake; `others` are arguments of `IntakeState` or `Intake`."""
    values: dict[str, object] = {
        "rank": 0,
        "dealing": Dealing(Routing.STEPS, 1),
        "time_steps": TimeSteps(num=num),
        "fields": [U],
        "study": "s",
        "incarnation": INCARNATION,
        "credit": credit,
        "client_ranks": MAX_UNSAID_RANKS,
    }
    of_intake: dict[str, object] = {
        "buffer": Waiting(),
        "validation": ValidationStore(0),
        "credit_slots": credit_slots,
    }
    for name, value in others.items():
        (values if name in values else of_intake)[name] = value
    return ClientIntake(IntakeState(**values), **of_intake)  # type: ignore[arg-type]


def block(field: str = "u", start: int = 0, num: int = 4) -> Block:
    return Block(field=field, dtype="<f8", shape=(4,), offset=(start,), count=(num,))


def opening(
    *blocks: Block,
    simulation: int = 0,
    attempt: int = 0,
    incarnation: int = INCARNATION,
    rank: int = 0,
    num_ranks: int = 1,
) -> Open:
    return Open(
        study="s",
        simulation=simulation,
        attempt=attempt,
        incarnation=incarnation,
        rank=rank,
        num_ranks=num_ranks,
        blocks=blocks,
    )


def answer_to(intake: ClientIntake, peer: bytes, message: Open) -> Connection | Refusal | None:
    """The connection that it opens, or why it does not; None: it has to wait."""
    [header] = wire.encode(message)
    intake.dispatcher.hear(peer, bytes(header), cast(Any, None), None)
    answer = intake.answers[peer][-1]
    if isinstance(answer, Refusal):
        return None if answer.reason is Reason.BUSY else answer
    return intake.dispatcher.connections[peer]


def opened(intake: ClientIntake, message: Open) -> Connection:
    connection = answer_to(intake, f"{message.simulation}.{message.attempt}.{message.rank}".encode(), message)
    assert isinstance(connection, Connection), connection
    return connection


def data(connection: Connection, index: int, **changes: object) -> Data:
    attempt = connection.attempt
    values = {
        "simulation": attempt.simulation,
        "attempt": attempt.attempt,
        "incarnation": connection.opening.incarnation,
        "sequence": connection.next_sequence,
        "index": index,
        "num_steps": 1,
        "present": connection.everything,
    }
    return Data(**{**values, **changes})  # type: ignore[arg-type]


def complete(intake: ClientIntake, connection: Connection, message: Data) -> list[StepRun] | Refusal:
    """Send with a perfect payload; returns what it completed."""
    [header] = wire.encode(message)
    placed = intake.assembly.place(connection, message, bytes(header))
    if isinstance(placed, MessageSeries):
        indices = range(placed.index, placed.index + placed.num_steps * placed.stride, placed.stride)
        slots, origin = intake.settlement.claim(placed.num_steps), (connection, connection.count(placed.num_steps))
        return [StepRun(connection.attempt, connection.attempt.reservation, indices, slots, placed.absent, [origin])]
    if isinstance(placed, Refusal):
        return placed
    num_bytes = 0
    if message.field != ALL_FIELDS:
        num_bytes = min(connection.places[message.field].num_bytes - message.offset, MAX_PART_BYTES)
    return intake.assembly.complete(connection, message, placed, num_bytes)


def send(intake: ClientIntake, connection: Connection, message: Data) -> int | Refusal:
    """Send with a perfect payload; returns how many steps it completed, which are accepted."""
    runs = complete(intake, connection, message)
    if isinstance(runs, Refusal):
        return runs
    for run in runs:
        intake.settlement.accept(run)
    return sum(len(run.slots) for run in runs)
