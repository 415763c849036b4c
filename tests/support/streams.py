"""Streams with a script, for tests of what consumes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stream_server.errors import Closed
from stream_server.server.progress.batches import Batch


def batch_of(data: Any, size: int, num_first: int | None = None) -> Batch:
    """A batch without keys of note; every sample is drawn for the first time unless told otherwise."""
    keys = np.zeros((2, size), np.int64)
    return Batch(
        data=data, size=size, keys=keys, is_first=np.arange(keys.shape[1]) < (size if num_first is None else num_first)
    )


class ScriptedStream:
    """Gives the items of a script one by one: a batch, None for none in time, or an exception to raise; then ends."""

    def __init__(self, script: Sequence[Batch | BaseException | None]) -> None:
        self._script = list(script)
        self.waits_s: list[float] = []
        self.num_drawn = 0
        self.num_settled = 0

    def draw(self, timeout_s: float) -> Batch | None:
        self.waits_s.append(timeout_s)
        if not self._script:
            raise Closed("the script is over")
        item = self._script.pop(0)
        if isinstance(item, BaseException):
            raise item
        self.num_drawn += item is not None
        return item

    def quiesce(self) -> None:
        """No user code runs for it on another thread."""

    def release(self) -> None:
        self.num_settled += 1
