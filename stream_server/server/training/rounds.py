"""The rounds of a study: all samples of one are trained before the simulations of the next one begin.

Why: docs/decisions/0096-rounds.md
"""

from collections.abc import Callable, Iterator
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
    `validate` returns whether no rank left the validation half-way, and `tell_results` tells what suggests parameters.
    `save` takes a checkpoint after each `save_every` rounds.
    """

    def __init__(
        self,
        ranks: Ranks,
        source: RoundSource,
        callbacks: Callbacks,
        progress: Progress,
        *,
        validate: Callable[[], bool],
        tell_results: Callable[[], None],
        save_every: int | None,
        save: Callable[[], Any],
    ) -> None:
        self._ranks = ranks
        self._source = source
        self._callbacks = callbacks
        self._progress = progress
        self._validate = validate
        self._tell_results = tell_results
        self._save_every = save_every
        self._save = save
        self._ends = self._end_and_begin()

    def note(self, union_batch: UnionBatch) -> None:
        """A batch is about to be trained, which may be the first of a round."""
        if union_batch.counts.num_first and not self._progress.round_has_samples:
            self._callbacks.tell("on_round_start", self._progress.rounds)

    def end(self) -> bool:
        """All ranks have trained what has come: whether more may come. Called until it does, with a vote in between."""
        return next(self._ends)

    def _end_and_begin(self) -> Iterator[bool]:
        """What `end` returns. After each, the ranks hand on all events of simulations, and may agree to stop."""
        progress = self._progress
        while True:
            yield True
            is_last, has_samples = bool(self._ranks.broadcast(self._source.is_drained)), progress.round_has_samples
            if has_samples:
                while not self._validate():
                    yield True
                self._callbacks.tell("on_round_end", progress.rounds)
            self._tell_results()
            if has_samples or not is_last:
                progress.end_round()
            if is_last:
                yield False
                return
            if self._save_every is not None and progress.rounds % self._save_every == 0:
                self._save()
            yield True
            self._source.begin_round(progress.rounds)
            yield True
