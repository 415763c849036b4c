"""Schedules of periodic actions, such as validations and log points."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stream_server.server.progress.progress import Progress

# So much less than a multiple of a fraction counts as that multiple: 0.15 / 0.05 is 2.9999999999999996.
ROUNDING = 1e-9


class Schedule:
    """The times of an action: every `every` batches, every `every_s` seconds and after the batches `at`.

    A float instead of a number of batches is a fraction of the run. Fractions mean the same moments whatever the number
    of ranks, and whether or not batches are full. All ranks get the same answer after the same step, since the progress
    is the same on all. An action that is due stays so until `done` is called.

    With `least_s` an action every so many batches takes place at a multiple of them, once so many seconds have passed.
    """

    def __init__(
        self,
        *,
        every: int | float | None = None,
        every_s: float | None = None,
        at: Sequence[int | float] = (),
        least_s: float = 0.0,
    ) -> None:
        self._every = every
        self._least_s = least_s
        self._every_s = every_s
        self._at = tuple(at)
        self._batch = 0
        self._fraction = 0.0
        self._time_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether the action never takes place."""
        return self._every is None and self._every_s is None and not self._at

    def is_due(self, progress: Progress) -> bool:
        """Return whether the action is due."""
        every = self._every
        if self.is_empty:
            return False
        if isinstance(every, int) and self._every_s is None and not self._at:
            is_over = progress.batches // every > self._batch // every
            if not (is_over and self._least_s):
                return is_over
            return progress.batches % every == 0 and progress.agreed_s - self._time_s >= self._least_s
        # The user may have continued the study with more to train: then a smaller fraction is done than before.
        self._fraction = min(self._fraction, progress.fraction or 0.0)
        return (
            (self._every is not None and self._num_reached(self._every, progress) > self._num_done(self._every))
            or any(self._num_reached(moment, progress) > 0 and not self._num_done(moment) for moment in self._at)
            or (self._every_s is not None and progress.agreed_s - self._time_s >= self._every_s)
        )

    def done(self, progress: Progress) -> None:
        """Count from here: the action was taken, due or not."""
        self._batch, self._fraction, self._time_s = progress.batches, progress.fraction or 0.0, progress.agreed_s

    def _num_reached(self, moment: int | float, progress: Progress) -> int:
        """The number of multiples of `moment` that are reached by now."""
        if isinstance(moment, int):
            return progress.batches // moment
        assert progress.fraction is not None, "study.json was checked for fractions of an unknown length"
        return math.floor(progress.fraction / moment + ROUNDING)

    def _num_done(self, moment: int | float) -> int:
        return self._batch // moment if isinstance(moment, int) else math.floor(self._fraction / moment + ROUNDING)

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._batch, "fraction": self._fraction, "time_s": self._time_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batch, self._fraction, self._time_s = state["batch"], state["fraction"], state["time_s"]
