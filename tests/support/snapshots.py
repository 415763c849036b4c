"""Snapshots of a study, and the board that takes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec

from stream_server.messages.operator import TrainingStatus
from stream_server.server.checkpoint.agreement import SaveCounts
from stream_server.server.study.status import Snapshot, StatusBoard
from tests.support.timing import Clock

TOLD = set(TrainingStatus.__struct_fields__)
NOTHING = TrainingStatus(
    at_s=0.0,
    batches=0,
    samples=0,
    batches_per_s=0.0,
    draws_per_s=0.0,
    loss=None,
    validation_loss=None,
    population=0,
    capacity=0,
    fraction=None,
    elapsed_s=0.0,
    left_s=None,
    is_degraded=False,
)


def changed(snapshot: Snapshot, **values: Any) -> Snapshot:
    """The snapshot with other values, of its training as well."""
    of_training = {name: values.pop(name) for name in TOLD & set(values) - {"loss", "validation_loss"}}
    return replace(snapshot, training=msgspec.structs.replace(snapshot.training, **of_training), **values)


def board_of(
    *shows: Callable[[Snapshot], None],
    saves: SaveCounts | None = None,
    received: Sequence[int] = (12,),
    **clocks: Clock,
) -> tuple[StatusBoard, Any]:
    """A board of a study of which all counts can be set, and what has them."""
    study: Any = SimpleNamespace(
        config=SimpleNamespace(
            study=SimpleNamespace(rounds=None, time_steps=SimpleNamespace(num=10)),
            offline=SimpleNamespace(epochs=1, write_files=False),
            buffer=SimpleNamespace(has_own_policy=False, watermark=7),
        ),
        progress=SimpleNamespace(batches=0, samples=0, draws=0, fraction=None, elapsed_s=0.0),
        buffer=SimpleNamespace(population=5, capacity=20, room=15),
        metrics=SimpleNamespace(latest={}),
        phases=SimpleNamespace(seconds={}),
    )
    source: Any = SimpleNamespace(counts=lambda: ({"running": 2, "waiting": 1}, received[0]), awaited="")
    board = StatusBoard(
        study, source, shows, saves=saves or SaveCounts(), restarts=1, warnings=lambda: ["old", "new"], **clocks
    )
    return board, study
