"""The parameters that a training was to change, and has not."""

from typing import Any

from stream_server.server.user.callbacks import Callback
from stream_server.server.user.framework import Step
from stream_server.wording import counted, listed


class UntrainedParameters(Callback):
    """Compares the parameters that require a gradient at the end of a training with those at the start of the study.

    Checkpoints keep the fingerprints of the start. Main thread; all ranks look, as each may have rows of one; rank 0
    tells of it.

    Attributes:
        warnings: name those that have not changed, not by one bit, and tell of single weights that could not.
        are_all: whether no parameter has, although updates were made.
    """

    def __init__(self, step: Step) -> None:
        self.warnings: list[str] = []
        self.are_all = False
        self._step = step
        self._start: dict[str, int] = {}

    def on_train_start(self, server: Any) -> None:
        """Note the parameters of a study that begins, those that the user's `on_train_start` made, too."""
        if not self._start and not server.progress.updates:
            optimized, others = self._step.trainable()
            self._start = {name: value for name, value in (*optimized.items(), *others.items()) if value is not None}

    def on_train_end(self, server: Any) -> None:
        if not server.progress.updates:
            return
        optimized, others = self._step.trainable()
        if server.rank:
            return
        same = [[name for name, mark in of.items() if mark == self._start.get(name, ...)] for of in (optimized, others)]
        num, num_same = len(optimized) + len(others), sum(map(len, same))
        self.are_all = 0 < num == num_same
        updates = counted(server.progress.updates, "update")
        rounding = self._step.rounding
        if same[0]:
            why = rounding or (
                "No gradient reached them, or their learning rate was 0. Freeze what is not to be trained by "
                "requires_grad_(False)"
            )
            self.warnings.append(
                f"{len(same[0])} of {len(optimized)} parameters in optimizers did not change in {updates}, not by one "
                f"bit: {listed(same[0])}. {why}"
            )
        elif rounding:
            self.warnings.append(rounding)
        if same[1]:
            self.warnings.append(
                f"{len(same[1])} parameters require a gradient, but are in no optimizer, and did not change in "
                f"{updates}: {listed(same[1])}. Make the optimizer of all parameters, once the model has all its "
                "parts, with lists of them in nn.ModuleList; update an average; freeze what is not to be trained by "
                "requires_grad_(False)"
            )

    def state_dict(self) -> dict[str, Any]:
        return dict(self._start)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = dict(state)
