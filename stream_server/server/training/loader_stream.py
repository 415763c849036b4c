"""The batches that a loader of the user's makes of this rank's samples.

Why: docs/decisions/0030-loader-of-the-users.md
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.errors import Closed, UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.training.forming import as_it_is
from stream_server.server.training.loader_samples import LoaderBlock, LoaderSamples, Taken, draws_of
from stream_server.server.training.prefetch import ASKS, Prefetch
from stream_server.server.training.stream import WAIT_S, BatchStream
from stream_server.server.user.collate import SharedArrays
from stream_server.server.user.stream_server import StreamServer
from stream_server.user_code import call_user

# As many batches have slots beside a full buffer, the one that is drawn among them, and one for each that is formed
# ahead.
MOST_HELD_BATCHES = 2

# Batches without a sample of the stream that are worth a warning.
MANY = 100

_END = object()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """A batch that the loader made.

    `dropped` are the samples that it dropped and that nobody knows of yet, `num_given` counts those that it was given
    so far.
    """

    data: Any
    taken: Taken
    dropped: Sequence[Draw]
    num_given: int


class LoaderStream(BatchStream):
    """Batches that the loader of `train_dataloader` makes; it is given samples one by one, as it asks for them.

    Samples are drawn `batch_size` at once, each with a draw of its own, which is released when its batch is trained or
    when the loader has dropped it. So what the loader holds back is in every checkpoint, and a restored stream gives it
    to the loader again before anything new. Without `prefetch` the loader runs only within `draw` and `form_again`.

    With `prefetch` it may make that many further batches whenever one is taken, and is given samples for them, as far
    as there are any. How many depends on the batch that was taken, and not on how far the loader is, so that a replay
    is repeated. It waits while the statistics of the normalization change, and while validations and captures run.
    """

    def __init__(
        self,
        buffer: Buffer,
        server: StreamServer,
        loader: Any,
        samples: LoaderSamples,
        *,
        parameters_of: Callable[[int], NDArray[np.float64]],
        batch_size: int,
        phases: Phases,
        before_draw: Callable[[], None] = lambda: None,
        prefetch: int = 0,
        stage: Callable[[Any], Any] = as_it_is,
    ) -> None:
        super().__init__(
            buffer,
            server,
            parameters_of=parameters_of,
            batch_size=batch_size,
            phases=phases,
            before_draw=before_draw,
            prefetch=prefetch,
            stage=stage,
        )
        self._name = f"the loader of {type(server).__name__}.train_dataloader"
        check_train_loader(loader, f"{type(server).__name__}.train_dataloader")
        self._loader = loader
        self._samples = samples
        self._collate_fn = loader.collate_fn
        self._shared = SharedArrays(server.collate)
        self._lists: list[list[Any]] = []
        self._batches: Iterator[Any] | None = None
        self._has_recognised = False
        self._prefetch = self._worker = self._new_worker()
        self._num_allowed = 0
        self._num_taken = 0
        self._num_given = 0
        self._stream_is_over = False
        self._has_ended = False
        self._num_batches = 0
        self._num_out = 0
        self._again: LoaderBlock = ()
        self._last_counts = (0, 0, 0)
        self._dropped: list[Draw] = []
        self._last_dropped: list[Draw] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self._server.normalization.before_change = self.quiesce
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__()
        self._loader.collate_fn = self._collate_fn

    def draw(self, timeout_s: float) -> Batch | None:
        self.release()
        return self._next(timeout_s)

    def release(self) -> None:
        if self._held:
            self._samples.none.clear()
        self._num_out -= len(self._held)
        super().release()

    def form_again(self) -> Batch:
        """The first batch, by a loader that starts over with the same samples; None stays None."""
        before = self._last_counts
        self._worker.quiesce()
        self._worker.__exit__()
        batches, blocks = self._worker.rest()
        draws = [*self._held, *self._samples.end(), *(draw for block in blocks for draw in draws_of(block))]
        for item in filter(None, batches):
            self._drop(item.dropped)
            draws += item.taken.draws
        again = [(sample, draw) for draw in draws for sample in self._forming.samples(draw)]
        none = [(None, draw) for draw in self._samples.none]
        self._again = sorted([*again, *none], key=lambda given: given[1].ticket)
        self._held = ()
        self._stream_is_over = self._has_ended = False
        self._earlier_s = self.prefetch_s
        self._num_allowed = self._num_taken = self._num_given = 0
        self._batches, self._lists, self._has_recognised = None, [], False
        self._shared = SharedArrays(self._server.collate)
        self._prefetch = self._worker = self._new_worker().__enter__()
        batch = None
        while batch is None:
            batch = self._next(WAIT_S)
        if self._last_counts != before:
            raise UserCodeError(
                f"{self._name} must begin in the same way each time it is iterated, but its first batch has "
                f"{_in_words(*self._last_counts)} instead of {_in_words(*before)}. Leave out the section normalization "
                "of study.json, or what depends on chance"
            )
        # The ranks have agreed on the batch as it was: what was dropped since is told with the next one.
        self._dropped = self._last_dropped
        return batch

    def _next(self, timeout_s: float) -> Batch | None:
        if self._has_ended:
            raise Closed("The loader has ended.")
        started_s = time.monotonic()
        self._allow(self._num_taken + 1)
        while True:
            with self._phases.measure("transform"):
                item = self._worker.take()
            if item is None:
                self._end()
            elif item is not ASKS:
                batch = self._batch(item)
                self._go_ahead(item)
                return batch
            else:
                # While it asks, it changes nothing.
                self._drop(self._samples.handed.dropped())
                elapsed_s = time.monotonic() - started_s
                if elapsed_s > max(timeout_s, WAIT_S):
                    # A loader that drops nearly all must not keep this rank from the rounds.
                    return None
                block = self._block(max(0.0, timeout_s - elapsed_s))
                if block is None:
                    return None
                self._give(block)

    def _allow(self, num_batches: int) -> None:
        """Let the loader make this many batches, all in all."""
        for _ in range(self._num_allowed, num_batches):
            self._worker.begin(True)
        self._num_allowed = max(self._num_allowed, num_batches)

    def _go_ahead(self, item: Made) -> None:
        """Let the loader make its next batches beside the step."""
        self._allow(self._num_taken + self._num_ahead)
        num_wanted = item.num_given + self._num_ahead * self._batch_size
        while self._num_given < num_wanted and self._num_out <= self._most_held and not self._again:
            try:
                draw = self._draw(0.0)
            except Closed:
                # It comes again when the loader needs samples.
                return
            if draw is None:
                return
            self._give(self._singles(draw))

    def _give(self, block: LoaderBlock) -> None:
        self._num_given += len(block)
        self._worker.give(block)

    def _block(self, timeout_s: float) -> LoaderBlock | None:
        """The next samples; an empty block at the end of the stream, None if there are none yet."""
        if self._again:
            again, self._again = self._again, ()
            return again
        self._check_room()
        try:
            draw = self._draw(timeout_s)
        except Closed:
            self._stream_is_over = True
            return []
        return None if draw is None else self._singles(draw)

    def _singles(self, draw: Draw) -> LoaderBlock:
        with self._phases.measure("gather"):
            samples = self._forming.samples(draw)
        singles = [draw] if len(draw.slots) == 1 else self._buffer.split(draw)
        self._num_out += len(singles)
        return list(zip(samples, singles, strict=True))

    @property
    def _most_held(self) -> int:
        return (MOST_HELD_BATCHES - 1 + self._num_ahead) * self._batch_size

    def _check_room(self) -> None:
        most = self._most_held
        if self._num_out > most:
            ahead = f" with training.prefetch {self._num_ahead} more for each batch ahead," if self._num_ahead else ""
            raise UserCodeError(
                f"{self._name} holds {self._num_out} samples and asks for more, but it may hold as many as "
                f"training.batch_size, {self._batch_size},{ahead} and not more: write a larger one, make smaller "
                'batches, or shuffle by the buffer.policy "firo"'
            )

    def _batch(self, item: Made) -> Batch:
        """The batch that the loader made, with what became of the samples before it."""
        taken = item.taken
        self._held = taken.draws
        self._num_taken += 1
        self._num_batches += 1
        if self._num_batches == MANY and not self.num_drawn:
            _log.warning(
                "%s has made %d batches and not asked train_dataset, which is the stream, for a sample: the "
                "simulations wait, and the study does not end before it does",
                self._name,
                MANY,
            )
        self._drop(item.dropped)
        dropped, self._dropped = self._dropped, []
        self._last_counts = (len(taken.draws), _num_first(taken.draws), taken.size)
        self._last_dropped = dropped
        slots = np.array([draw.slots[0] for draw in taken.draws], np.intp)
        keys = np.stack([self._buffer.slots.simulation_ids[slots], self._buffer.slots.time_steps[slots]])
        return Batch(
            data=item.data,
            size=taken.size,
            keys=keys,
            is_first=np.array([draw.num_first > 0 for draw in taken.draws], bool),
            num_added=taken.num_added,
            num_dropped=len(dropped),
            num_first_dropped=_num_first(dropped),
        )

    def _drop(self, draws: Sequence[Draw]) -> None:
        self._dropped += draws
        self.num_dropped += _num_first(draws)
        self._num_out -= len(draws)
        for draw in draws:
            self._buffer.release(draw)

    def _end(self) -> None:
        if not self._stream_is_over:
            raise UserCodeError(
                f"{self._name} ended after {self._num_batches} batches, but the stream has not: let it iterate until "
                "the StreamDataset ends, with itertools.cycle around what is shorter, and end the study by "
                "training.max_batches"
            )
        self._has_ended = True
        self._drop(self._samples.end())
        raise Closed("The loader has ended.")

    def _new_worker(self) -> Prefetch[bool, Made | None]:
        return Prefetch(lambda _: self._make(), "loader")

    def _make(self) -> Made | None:
        """The next batch of the loader, None at its end. On the worker's thread."""
        if self._batches is None:
            self._samples.begin(self._worker.ask, self._forming.process)
            self._loader.collate_fn = self._collate
            self._batches = call_user(self._name, iter, self._loader)
        while (data := call_user(self._name, next, self._batches, _END)) is not _END:
            taken = self._taken()
            if taken.size:
                data = call_user(self._name, self._convert, data)
                return Made(data, taken, self._samples.handed.dropped(), self._samples.num_given)
            del data
        return None

    def _taken(self) -> Taken:
        """The samples of the batch that the loader made."""
        if len(self._lists) != 1:
            raise UserCodeError(
                f"{self._name} must call its collate_fn once for each batch, which tells the samples of that "
                f"batch, but called it {len(self._lists)} times for one: return a torch.utils.data.DataLoader "
                "itself, and choose or change samples in its dataset"
            )
        handed = self._samples.handed
        taken = handed.take(self._lists.pop())
        self._has_recognised = self._has_recognised or bool(taken.draws)
        if not self._has_recognised and handed.num_given and taken.num_added:
            raise UserCodeError(
                f"no sample of the first batch that {self._name} made is one of the stream, although it was given "
                "some: pass on the objects that the dataset gives, and transform them in process_simulation_data "
                "or in collate_fn"
            )
        return taken

    def _collate(self, samples: list[Any]) -> Any:
        self._lists.append(list(samples))
        self._shared.check(samples, self._name)
        return self._collate_fn(samples)

    def _convert(self, data: Any) -> Any:
        return self._forming.set_apart(self._server.collate.convert(data))


def check_train_loader(loader: Any, name: str) -> None:
    """Refuse what cannot tell which samples its batches hold, or cannot have the stream.

    Raises:
        UserCodeError: it is no DataLoader that batches in this process.
    """
    if "DataLoader" not in {base.__name__ for base in type(loader).__mro__}:
        raise UserCodeError(
            f"{name} must return a torch.utils.data.DataLoader, or None, but returned a {type(loader).__name__}: put "
            "it into DataLoader(dataset, batch_size=…)"
        )
    if loader.num_workers:
        raise UserCodeError(
            f"{name} must use num_workers=0, but has {loader.num_workers}: the stream is in this process, and cannot "
            "be forked"
        )
    if loader.batch_sampler is None and loader.batch_size is None:
        raise UserCodeError(f"{name} must return a DataLoader that makes batches, but its batch_size is None")


def _num_first(draws: Sequence[Draw]) -> int:
    return sum(draw.num_first for draw in draws)


def _in_words(num: int, num_first: int, size: int) -> str:
    return f"{size} samples, {num} of the stream, {num_first} of them for the first time,"
