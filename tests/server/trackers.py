"""Trackers for the tests, and clients that speak to them without sockets."""

from collections.abc import Iterator
from itertools import count

from stream_server.client_api.messages import Block, Data, FieldSpec, Open, Refusal, Routing, TimeSteps
from stream_server.server.tracker import Tracker
from stream_server.server.tracks import Connection, Run

EPOCH = 0
U = FieldSpec(name="u", shape=(4,), dtype="<f8")
OPTIONAL = FieldSpec(name="v", shape=(4,), dtype="<f8", optional=True)


def make(*, num: int | None = 8, credit: int = 4, room: int = 8, **others: object) -> Tracker:
    slots: Iterator[int] = count()
    values: dict[str, object] = {
        "rank": 0,
        "num_ranks": 1,
        "routing": Routing.STEPS,
        "time_steps": TimeSteps(num=num),
        "fields": [U],
        "study": "s",
        "epoch": EPOCH,
        "credit": credit,
        "room": room,
        "claim": lambda num: [next(slots) for _ in range(num)],
    }
    return Tracker(**{**values, **others})  # type: ignore[arg-type]


def block(field: str = "u", start: int = 0, num: int = 4) -> Block:
    return Block(field=field, dtype="<f8", shape=(4,), offset=(start,), count=(num,))


def opening(
    *blocks: Block, simulation: int = 0, attempt: int = 0, epoch: int = EPOCH, rank: int = 0, num_ranks: int = 1
) -> Open:
    return Open(
        study="s", simulation=simulation, attempt=attempt, epoch=epoch, rank=rank, num_ranks=num_ranks, blocks=blocks
    )


def opened(tracker: Tracker, message: Open) -> Connection:
    connection = tracker.open(f"{message.simulation}.{message.attempt}.{message.rank}".encode(), message)
    assert isinstance(connection, Connection), connection
    return connection


def data(connection: Connection, index: int, **changes: object) -> Data:
    track = connection.track
    values = {
        "simulation": track.simulation,
        "attempt": track.attempt,
        "epoch": connection.opening.epoch,
        "sequence": connection.next_sequence,
        "index": index,
        "num_steps": 1,
        "present": connection.everything,
    }
    return Data(**{**values, **changes})  # type: ignore[arg-type]


def send(tracker: Tracker, connection: Connection, message: Data) -> int | Refusal:
    """Send with a perfect payload; returns how many steps it completed, which are accepted."""
    placed = tracker.assembly.place(connection, message)
    if isinstance(placed, Refusal):
        return placed
    runs = [placed] if isinstance(placed, Run) else tracker.assembly.arrived(connection, message, placed)
    if isinstance(runs, Refusal):
        return runs
    for run in runs:
        tracker.settlement.accept(run)
    return sum(len(run.slots) for run in runs)
