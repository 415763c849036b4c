"""The rounds of a study: all samples of one are trained before the simulations of the next one begin.

Why: docs/decisions/0096-rounds.md
"""

from collections.abc import Callable
from typing import Any, Protocol

from stream_server.server.progress.batches import UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.callbacks import Callbacks


class RoundSource(Protocol):
    """Simulations that come in rounds; `is_drained`: nothing will come to this rank, and all that came was drawn."""

    @property
    def is_drained(self) -> bool: ...

    def begin_round(self, num_ended: int) -> None: ...


class Rounds:
    """Ends a round on all ranks, and lets the next one begin. Main thread; every method is collective.

    A round lasts from the first batch with a new sample until all its simulations are over and each of their samples
    was trained as often as the buffer promises. What a reservoir keeps may be trained again until new samples come.
    `save` takes a checkpoint after each `save_every` rounds.
    """

    def __init__(
        self,
        ranks: Ranks,
        source: RoundSource,
        callbacks: Callbacks,
        progress: Progress,
        *,
        save_every: int | None,
        save: Callable[[], Any],
    ) -> None:
        self._ranks = ranks
        self._source = source
        self._callbacks = callbacks
        self._progress = progress
        self._save_every = save_every
        self._save = save

    def note(self, union_batch: UnionBatch) -> None:
        """A batch is about to be trained, which may be the first of a round."""
        if union_batch.counts.num_first and not self._progress.round_has_samples:
            self._callbacks.tell("on_round_start", self._progress.rounds)

    def end(self) -> bool:
        """All ranks have trained what has come: whether more may come."""
        progress = self._progress
        is_last, has_samples = bool(self._ranks.broadcast(self._source.is_drained)), progress.round_has_samples
        if has_samples:
            self._callbacks.tell("on_round_end", progress.rounds)
        if has_samples or not is_last:
            progress.end_round()
        if is_last:
            return False
        if self._save_every is not None and progress.rounds % self._save_every == 0:
            self._save()
        self._source.begin_round(progress.rounds)
        return True
