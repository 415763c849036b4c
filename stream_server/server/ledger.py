"""The ledger: which steps of which simulations one server rank has settled. Pure; receiver thread."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np


class Steps:
    """A growing set of step indices, made for asking and adding whole strided ranges at once: one byte for each."""

    __slots__ = ("_flags", "_num")

    def __init__(self, packed: bytes = b"") -> None:
        self._flags = bytearray(np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little"))
        self._num = self._flags.count(1)

    def __len__(self) -> int:
        return self._num

    def __contains__(self, index: int) -> bool:
        return index < len(self._flags) and bool(self._flags[index])

    @property
    def stop(self) -> int:
        """Above the highest index in the set."""
        return len(self._flags)

    def has_any(self, indices: range) -> bool:
        """Whether any of these is in the set."""
        return 1 in self._flags[indices.start : indices.stop : indices.step]

    def add(self, indices: range) -> None:
        """Add indices none of which is in the set."""
        assert not self.has_any(indices)
        missing = indices.stop - len(self._flags)
        if missing > 0:
            self._flags.extend(bytes(missing))
        self._flags[indices.start : indices.stop : indices.step] = b"\1" * len(indices)
        self._num += len(indices)

    def packed(self) -> bytes:
        """One bit for each, in little-endian bit order."""
        return np.packbits(np.frombuffer(self._flags, np.uint8), bitorder="little").tobytes()


class Marks:
    """The settled steps of one simulation: accepted, or rejected for a reason."""

    __slots__ = ("reasons", "rejected", "settled")

    def __init__(self) -> None:
        self.settled = Steps()
        self.rejected = Steps()
        self.reasons: Counter[str] = Counter()

    @property
    def num_accepted(self) -> int:
        return len(self.settled) - len(self.rejected)

    @property
    def num_rejected(self) -> int:
        return len(self.rejected)

    def accept(self, indices: range) -> None:
        self.settled.add(indices)

    def reject(self, indices: range, reason: str) -> None:
        self.settled.add(indices)
        self.rejected.add(indices)
        self.reasons[reason] += len(indices)


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
                    "settled": np.frombuffer(marks.settled.packed(), np.uint8),
                    "rejected": np.frombuffer(marks.rejected.packed(), np.uint8),
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
            marks.settled = Steps(np.asarray(saved["settled"], np.uint8).tobytes())
            marks.rejected = Steps(np.asarray(saved["rejected"], np.uint8).tobytes())
            marks.reasons = Counter({str(reason): int(num) for reason, num in saved["reasons"].items()})
