"""Batches with fewer rows than samples are noticed, whatever form a batch has."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from stream_server.server.progress.batches import Batch
from stream_server.server.training.monitoring.batch_rows import BatchRows

NUM = 10


def warnings_of(*batches: Any, num: int = NUM) -> list[str]:
    rows = BatchRows()
    for data in batches:
        rows.note(Batch(data=data, size=num, keys=np.zeros((2, num), np.int64), is_first=np.ones(num, bool)))
    return rows.warnings


@pytest.mark.parametrize(
    "data",
    [
        (np.zeros((3, 2)), np.zeros((3, 4))),
        {"x": torch.zeros(5, 2), "y": torch.zeros(5, 4)},
        [torch.zeros(0, 2), torch.zeros(0, 4)],
        (torch.zeros(1, 2), 3.0, "name", None),
    ],
    ids=["tuple", "dict", "empty", "single"],
)
def test_a_batch_that_lacks_rows_is_told_once_and_counted(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        [text] = warnings_of(data, (torch.zeros(NUM, 2),), data)
    assert text.startswith("in 2 of 3 batches, such as one of 10 samples, arrays had fewer rows")
    assert len(caplog.records) == 1


class Graphs:
    """A batch of a library."""


@pytest.mark.parametrize(
    "data",
    [
        (torch.zeros(NUM, 2), torch.zeros(NUM)),
        (torch.zeros(5, NUM, 2), torch.zeros(3, 4)),
        (torch.zeros(37, 2), torch.zeros(2, 71)),
        (torch.zeros(1, 3 * NUM, 2),),
        {"parts": [torch.zeros(3)] * NUM},
        (Graphs(), torch.zeros(3, 4)),
        (torch.zeros(()), 1.0),
    ],
    ids=["rows", "time first", "nodes", "tokens", "ragged", "object", "numbers"],
)
def test_a_batch_in_which_all_samples_may_be_is_not_told(data: Any) -> None:
    assert warnings_of(data) == []
