"""Records of accepted samples, as both sweeps make and read them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stream_server.client_api.messages import FieldSpec
from stream_server.server.record.facts import RecordFacts
from stream_server.server.record.recorder import Recorder
from tests.server.record.recorded import FIELDS, PARAMETERS, Key, parameters_of, slots_with


def recorder(
    folder: Path, keys: Sequence[Key], *, epoch: int, position: int, rank: int = 0, num_ranks: int = 1, study: int = 0
) -> Recorder:
    """The recorder of a rank, whose slots hold the samples of these keys; each `study` is another one."""
    facts = RecordFacts(
        study="waves",
        ranks=num_ranks,
        fields=tuple(FieldSpec(name=name, **{**it, "shape": tuple(it["shape"])}) for name, it in FIELDS.items()),
        parameters=PARAMETERS,
        routing="steps",
        first=0,
        every=1,
        num_held_out=0,
        nonfinite="reject",
        seed=7 + study,
    )
    rows = slots_with(keys)
    return Recorder(folder, facts, rank=rank, epoch=epoch, position=position, rows=rows, parameters_of=parameters_of)


@contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """What is logged meanwhile, and goes nowhere else."""
    heard: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stream_server")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
