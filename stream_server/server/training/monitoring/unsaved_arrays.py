"""Arrays and numbers that a training changes, and that no checkpoint has.

Why: docs/decisions/0037-fingerprints.md
"""

import logging
from pathlib import Path
from typing import Any

from stream_server.server.training.fingerprint import Fingerprints, of_arrays, of_numbers
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import Step
from stream_server.server.user.stream_server import rank_state_of
from stream_server.wording import listed

_log = logging.getLogger(__name__)


class UnsavedArrays(Callback):
    """Finds arrays that start over at a restart: attributes of the server and of callbacks, and buffers of modules.

    Only those that are there when the training starts are looked at, and have changed by the first checkpoint or the
    end. What is made later is mostly a batch or a result.

    Numbers, such as a multiplier or the step count of an optimizer of the user's, are mostly counts and times of no
    consequence, and so is the state of a generator of random numbers. So of those that the training has changed a
    restart tells, if it begins with other ones than the checkpoint was taken with. Main thread, rank 0.

    Attributes:
        warnings: names those that have changed.
    """

    def __init__(self, step: Step, callbacks: Callbacks) -> None:
        self.warnings: list[str] = []
        self._step = step
        self._callbacks = callbacks
        self._start: Fingerprints = {}
        self._numbers_at_start: Fingerprints = {}
        self._numbers_saved: Fingerprints = {}
        self._is_to_look = True

    def on_train_start(self, server: Any) -> None:
        if server.rank == 0:
            self._start = self._unsaved()
            self._numbers_at_start = now = self._numbers()
            # On another number of ranks they are what the user's class made of those of all.
            own = {*of_numbers(rank_state_of(server)).values()} if self._numbers_saved else set()
            before = self._numbers_saved.items()
            if begun_anew := [name for name, value in before if now.get(name, value) not in {value, *own}]:
                self._warn(
                    f"{listed(begun_anew)} of {type(server).__name__} had other values when the checkpoint was taken, "
                    "which has none of them: the training goes on with those that prepare_training_attributes and "
                    "on_train_start make. If that matters, return them from state_dict and take them back in "
                    "load_state_dict"
                )

    def state_dict(self) -> dict[str, Any]:
        """The numbers that the training has changed."""
        start = self._numbers_at_start
        return {name: mark for name, mark in self._numbers().items() if start.get(name, mark) != mark} if start else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._numbers_saved = state

    def on_checkpoint(self, server: Any, path: Path) -> None:
        if self._is_to_look:
            self._is_to_look = False
            self._look(server)

    def on_train_end(self, server: Any) -> None:
        self._look(server)

    def _look(self, server: Any) -> None:
        if not self._start:
            return
        saved = {*self._step.fingerprints().values(), *self._step.learned().values()}
        saved |= {*of_arrays([self._callbacks.user_states(), rank_state_of(server)]).values()}
        now = self._unsaved()
        changed = [name for name, value in self._start.items() if now.get(name, value) not in {value, *saved}]
        if changed:
            self._start = {name: value for name, value in self._start.items() if name not in changed}
            own = type(server).__name__
            text = (
                f"the training changes {listed(changed)} of {own}, which no checkpoint has: a restart begins with what "
                "prepare_training_attributes and on_train_start make. Unless that is meant, return it from state_dict "
                "and take it back in load_state_dict; for a buffer of a module, call register_buffer without "
                "persistent=False; for an average of weights, use an AveragedModel"
            )
            self._warn(text)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    def _numbers(self) -> Fingerprints:
        return {**self._step.unsaved_numbers(), **of_numbers(self._callbacks.user_attributes())}

    def _unsaved(self) -> dict[str, int | None]:
        return {**self._step.unsaved(), **of_arrays(self._callbacks.user_attributes())}
