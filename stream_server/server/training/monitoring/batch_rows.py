"""Notices batches of fewer rows than samples: samples left out by user code count as trained all the same."""

import logging
from collections.abc import Mapping
from typing import Any

from stream_server.server.progress.batches import Batch

UNKNOWN: tuple[int, ...] = ()

_log = logging.getLogger(__name__)


class BatchRows:
    """Counts the batches in which no array has room for each sample. Main thread.

    An array has if one of its axes has as many entries as there are samples, or a multiple of that, or its first axis
    has more, as that of the nodes of graphs. What is no array, such as an object of a library, is not looked into.
    """

    def __init__(self) -> None:
        self._num = 0
        self._num_short = 0
        self._first = ""

    @property
    def warnings(self) -> list[str]:
        """Number of batches with fewer rows than samples, in words."""
        return [f"in {self._num_short:,} of {self._num:,} batches, {self._first}"] if self._num_short else []

    def note(self, batch: Batch) -> None:
        """Look at a batch that is about to be trained."""
        self._num += 1
        first = batch.data[0] if isinstance(batch.data, tuple) and batch.data else batch.data
        if (shape := getattr(first, "shape", None)) and shape[0] >= batch.size:
            return
        shapes = _shapes(batch.data)
        if not shapes or any(_has_room(shape, batch.size) for shape in shapes):
            return
        self._num_short += 1
        if not self._first:
            shown = ", ".join(str(shape) for shape in dict.fromkeys(shapes))
            self._first = (
                f"such as one of {batch.size} samples, arrays had fewer rows than there were samples: {shown}. What "
                "process_batch or a collate_fn leaves out is not trained, and counts as trained. Leave samples out by "
                "a dataset in train_dataloader, which counts what it drops"
            )
            _log.warning("batch with too few rows, %s", self._first)


def _shapes(data: Any) -> list[tuple[int, ...]]:
    """The shapes of all arrays in a batch, a list being one; UNKNOWN for anything but arrays and numbers."""
    if isinstance(data, Mapping):
        data = tuple(data.values())
    if isinstance(data, tuple | list):
        of_all = [_shapes(value) for value in data]
        return [(len(data),)] * isinstance(data, list) + [shape for shapes in of_all for shape in shapes]
    if data is None or isinstance(data, str | int | float | complex):
        return []
    shape = getattr(data, "shape", None)
    if shape is None:
        return [UNKNOWN]
    return [tuple(shape)] if len(shape) else []


def _has_room(shape: tuple[int, ...], num: int) -> bool:
    return shape == UNKNOWN or shape[0] >= num or any(extent and extent % num == 0 for extent in shape)
