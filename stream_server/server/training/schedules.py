"""When something that is done now and then is due."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from stream_server.server.training.progress import Progress


class Schedule:
    """Every `every` batches, every `every_s` seconds and after the batches `at`, whichever comes first.

    All ranks ask after the same steps and get the same answer, since the progress is the same on all. What is due stays
    so until it was `done`.
    """

    def __init__(self, *, every: int | None = None, every_s: float | None = None, at: Sequence[int] = ()) -> None:
        self._every = every
        self._every_s = every_s
        self._at = tuple(at)
        self._batch = 0
        self._time_s = 0.0

    @classmethod
    def of(
        cls,
        *,
        every: int | float | None = None,
        every_s: float | None = None,
        at: Sequence[int | float] = (),
        expected_batches: int | None = None,
    ) -> Self:
        """The schedule that study.json asks for, in which a float is a fraction of the `expected_batches`."""
        return cls(
            every=moment(every, expected_batches),
            every_s=every_s,
            at=[batch for it in at if (batch := moment(it, expected_batches)) is not None],
        )

    def is_due(self, progress: Progress) -> bool:
        """Whether the time has come since it was last done."""
        now = progress.batches
        return (
            (self._every is not None and now // self._every > self._batch // self._every)
            or any(self._batch < batch <= now for batch in self._at)
            or (self._every_s is not None and progress.agreed_s - self._time_s >= self._every_s)
        )

    def done(self, progress: Progress) -> None:
        """It was done now, due or not."""
        self._batch, self._time_s = progress.batches, progress.agreed_s

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._batch, "time_s": self._time_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batch, self._time_s = state["batch"], state["time_s"]


def moment(value: int | float | None, expected_batches: int | None) -> int | None:
    """The batches that a value of study.json stands for: a number of them, or a fraction of those expected."""
    if value is None or isinstance(value, int):
        return value
    assert expected_batches is not None, "study.json was checked for fractions of an unknown length"
    return max(1, round(value * expected_batches))
