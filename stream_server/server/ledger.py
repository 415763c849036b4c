"""The ledger: which steps of which simulations one server rank has settled. Pure; receiver thread."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from stream_server.client_api.bits import Bits


class Marks:
    """The settled steps of one simulation: accepted, or rejected for a reason."""

    __slots__ = ("reasons", "rejected", "settled")

    def __init__(self) -> None:
        self.settled = Bits()
        self.rejected = Bits()
        self.reasons: Counter[str] = Counter()

    @property
    def num_accepted(self) -> int:
        return len(self.settled) - len(self.rejected)

    @property
    def num_rejected(self) -> int:
        return len(self.rejected)

    def accept(self, index: int) -> None:
        self.settled.add(index)

    def reject(self, index: int, reason: str) -> None:
        self.settled.add(index)
        self.rejected.add(index)
        self.reasons[reason] += 1


class Ledger:
    """The marks of every simulation that this rank has heard of, and how many settled steps came again."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._marks: dict[int, Marks] = {}

    def __getitem__(self, simulation: int) -> Marks:
        """The marks of a simulation, empty ones if it is new."""
        marks = self._marks.get(simulation)
        if marks is None:
            marks = self._marks[simulation] = Marks()
        return marks

    @property
    def marks(self) -> Mapping[int, Marks]:
        """Everything that is written down so far."""
        return self._marks

    def state_dict(self) -> dict[str, Any]:
        return {
            "duplicates": self.duplicates,
            "marks": {
                simulation: {
                    "settled": np.frombuffer(bytes(marks.settled), np.uint8),
                    "rejected": np.frombuffer(bytes(marks.rejected), np.uint8),
                    "reasons": dict(marks.reasons),
                }
                for simulation, marks in self._marks.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.duplicates = int(state["duplicates"])
        self._marks = {}
        for simulation, saved in state["marks"].items():
            marks = self[int(simulation)]
            marks.settled = Bits(np.asarray(saved["settled"], np.uint8).tobytes())
            marks.rejected = Bits(np.asarray(saved["rejected"], np.uint8).tobytes())
            marks.reasons = Counter({str(reason): int(num) for reason, num in saved["reasons"].items()})
