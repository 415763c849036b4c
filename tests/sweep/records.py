"""Records of accepted samples, as both sweeps make and read them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.messages.client import FieldSpec
from stream_server.server.replay.record_format import RecordFacts
from stream_server.server.replay.recorder import Recorder
from tests.support.recorded import FIELDS, PARAMETERS, Key, parameters_of, slots_with


def recorder(
    folder: Path,
    keys: Sequence[Key],
    *,
    incarnation: int,
    position: int,
    rank: int = 0,
    num_ranks: int = 1,
    study: int = 0,
) -> Recorder:
    """The recorder of a rank, whose slots hold the samples of these keys; each `study` is another one."""
    facts = RecordFacts(
        study="waves",
        ranks=num_ranks,
        fields=field_specs(FIELDS),
        parameters=PARAMETERS,
        routing="steps",
        first=0,
        every=1,
        num_held_out=0,
        nonfinite="reject",
        seed=7 + study,
    )
    rows = slots_with(keys)
    return Recorder(
        folder, facts, rank=rank, incarnation=incarnation, position=position, rows=rows, parameters_of=parameters_of
    )


def field_specs(fields: dict[str, Any]) -> tuple[FieldSpec, ...]:
    """The fields of study.json as a record has them."""
    given = {name: {**it, "shape": tuple(it["shape"])} for name, it in fields.items()}
    return tuple(
        FieldSpec(name=name, **{**it, "dtype": np.dtype(it["dtype"]).str if "dtype" in it else ""})
        for name, it in given.items()
    )


@contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """Collect the warnings that are logged meanwhile, instead of printing them."""
    heard: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stream_server")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
