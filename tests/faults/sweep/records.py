"""Records of accepted samples, as both sweeps make and read them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.messages.client import FieldSpec
from stream_server.server.replay.recorded_study import RecordedStudy
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
    facts = RecordedStudy(
        study="waves",
        ranks=num_ranks,
        fields=field_specs(FIELDS),
        parameters=PARAMETERS,
        first=0,
        every=1,
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
