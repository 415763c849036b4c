"""The count of the updates that a step skips because its gradient is not finite, or none of the optimizer's."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import UserCodeError

MOST_PAIRS = 16

_log = logging.getLogger(__name__)


class SkippedUpdates:
    """Counts the updates that are skipped in a row, and ends the study when they are too many.

    The ranks come to the same conclusion, since they all have the same gradient.
    """

    def __init__(self, *, most_in_row: int) -> None:
        self.num_in_row = 0
        self._most_in_row = most_in_row
        self._keys: list[NDArray[np.int64]] = []

    def note_batch(self, keys: NDArray[np.int64]) -> None:
        """A batch of this rank takes part in the next update; `keys` of shape (2, size), simulations and steps."""
        self._keys.append(keys)

    def judge(self, batch: int, fault: str = "", *, is_excused: bool = False) -> None:
        """The update after batch number `batch` was made, or skipped because its gradient has a `fault`.

        `is_excused`: a lower scale of the loss may cure it, so it does not count.

        Raises:
            UserCodeError: too many updates in a row were skipped.
        """
        keys, self._keys = self._keys, []
        if not fault:
            self.num_in_row = 0
            return
        text = f"the gradient of batch {batch} {fault}"
        if is_excused:
            _log.info("%s: the update is skipped, and the loss will be scaled less", text)
            return
        self.num_in_row += 1
        if self.num_in_row > self._most_in_row:
            raise UserCodeError(f"{text}, {self._limit()}. {_describe(keys)}")
        _log.warning("%s: the update is skipped", text)

    def state_dict(self) -> dict[str, Any]:
        return {"num_in_row": self.num_in_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_in_row = state["num_in_row"]

    def _limit(self) -> str:
        if self._most_in_row == 0:
            return "and training.nonfinite is stop"
        return (
            f"like those of the {self.num_in_row - 1} updates before, and training.max_nonfinite is {self._most_in_row}"
        )


def _describe(keys: list[NDArray[np.int64]]) -> str:
    """The samples by simulation and time step, as far as they are worth reading."""
    if not keys:
        return "This rank had no batch; see what the others say"
    simulations, steps = np.concatenate(keys, axis=1).tolist()
    pairs = [f"({simulation}, {step})" for simulation, step in zip(simulations, steps, strict=True)]
    more = "" if len(pairs) <= MOST_PAIRS else ", …"
    shown = ", ".join(pairs[:MOST_PAIRS])
    return f"This rank's {len(pairs)} samples of it, as (simulation, time step): {shown}{more}"
