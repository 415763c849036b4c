"""Arrays that a training changes, and that no checkpoint has."""

import logging
from pathlib import Path
from typing import Any

from stream_server.server.training.fingerprint import Fingerprints, of_arrays
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import Step
from stream_server.wording import listed

_log = logging.getLogger(__name__)


class UnsavedArrays(Callback):
    """Finds arrays that begin anew at a restart: attributes of the server and of callbacks, and buffers of modules.

    Only those that are there when the training starts are looked at, and have changed by the first checkpoint or the
    end. What is made later is mostly a batch or a result. Main thread, rank 0.

    Attributes:
        warnings: names those that have changed.
    """

    def __init__(self, step: Step, callbacks: Callbacks) -> None:
        self.warnings: list[str] = []
        self._step = step
        self._callbacks = callbacks
        self._start: Fingerprints = {}
        self._is_to_look = True

    def on_train_start(self, server: Any) -> None:
        if server.rank == 0:
            self._start = self._unsaved()

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
        saved |= {*of_arrays(self._callbacks.user_states()).values()}
        now = self._unsaved()
        changed = [name for name, it in self._start.items() if now.get(name, it) not in {it, *saved}]
        if changed:
            self._start = {name: it for name, it in self._start.items() if name not in changed}
            own = type(server).__name__
            text = (
                f"the training changes {listed(changed)} of {own}, which no checkpoint has: a restart begins with what "
                "prepare_training_attributes and on_train_start make. Unless that is meant, return it from state_dict "
                "and take it back in load_state_dict; for a buffer of a module, call register_buffer without "
                "persistent=False; for an average of weights, use an AveragedModel"
            )
            self.warnings.append(text)
            _log.warning("%s", text)

    def _unsaved(self) -> dict[str, int | None]:
        return {**self._step.unsaved(), **of_arrays(self._callbacks.user_attributes())}
