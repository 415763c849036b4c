"""The list of what restarts have changed in a run, which its checkpoints keep and its report tells."""

from collections.abc import Iterator
from typing import Any

import msgspec

from stream_server.messages.operator import Change, cut_off


class Changes:
    """What restarts have changed, the oldest first; the same on all ranks, which note it alike. Main thread.

    `batch` is the number of batches that were trained before this start: from there on holds what it notes.
    """

    def __init__(self, batch: int = 0) -> None:
        self.batch = batch
        self.earlier: list[Change] = []
        self.new: list[Change] = []

    def __iter__(self) -> Iterator[Change]:
        return iter([*self.earlier, *self.new])

    def note(self, name: str, *, before: Any, now: Any, source: str, note: str = "") -> None:
        """Keep a change that this start makes, with values that JSON has; said once all user code was called."""
        values = {"before": cut_off(before), "now": cut_off(now)}
        change = Change(name=name, source=source, batch=self.batch, note=note, **values)
        self.new.append(change)

    def state_dict(self) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(change) for change in self]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        self.earlier = msgspec.convert(state, list[Change])
