"""The losses of a training whose gradients the study does not see."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_server.errors import UserCodeError
from stream_server.server.progress.batches import SMALL_PART
from stream_server.server.user.callbacks import Callback

if TYPE_CHECKING:
    from stream_server.config.training_sections import TrainingSettings


class FiniteLosses(Callback):
    """Ends a study whose losses are not finite too often in a row, or never were.

    It is for what updates its model itself, in a plain server or with manual optimisation: there no update can be
    skipped, and one gradient that is not finite spoils the model. Main thread; `on_train_end` is collective.
    """

    def __init__(self, settings: "TrainingSettings") -> None:
        self._most_in_row = 0 if settings.nonfinite == "stop" else settings.max_nonfinite
        self._num = 0
        self._num_finite = 0
        self._num_in_row = 0

    def on_batch_end(self, server: Any, batch: Any, batch_idx: int, loss: float | None) -> None:
        """Count the loss of a batch.

        Raises:
            UserCodeError: it is one too many that is not finite.
        """
        if loss is None:
            return
        self._num += 1
        if math.isfinite(loss):
            self._num_finite += 1
            self._num_in_row = 0
            return
        self._num_in_row += 1
        if self._num_in_row > self._most_in_row:
            before = f", like those of the {self._num_in_row - 1} batches before" if self._num_in_row > 1 else ""
            limit = (
                f"training.max_nonfinite is {self._most_in_row}" if self._most_in_row else "training.nonfinite is stop"
            )
            raise UserCodeError(f"the loss of batch {batch_idx} is not finite{before}, and {limit}")

    def on_train_end(self, server: Any) -> None:
        """Look at the losses of all ranks.

        Raises:
            UserCodeError: none was finite.
        """
        num, num_finite = server.all_reduce(np.array([self._num, self._num_finite], np.float64))
        if num and not num_finite:
            raise UserCodeError("nothing was learned: not one loss that training_step returned is finite")

    @property
    def warnings(self) -> list[str]:
        """Losses that were not finite: the last one, or more than a small part."""
        num_bad = self._num - self._num_finite
        if not self._num_in_row and num_bad <= SMALL_PART * self._num:
            return []
        last = ", the last one too: the model may be spoilt" if self._num_in_row else ""
        return [f"{num_bad:,} of {self._num:,} losses that training_step returned were not finite{last}"]

    def state_dict(self) -> dict[str, Any]:
        return {"num": self._num, "num_finite": self._num_finite, "num_in_row": self._num_in_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num, self._num_finite, self._num_in_row = state["num"], state["num_finite"], state["num_in_row"]
