"""The batches that a loader of the user's makes of this rank's samples."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.errors import Closed, UserCodeError
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.training.forming import BatchForming
from stream_server.server.training.loader_samples import (
    Asks,
    Block,
    Ended,
    LoaderSamples,
    LoaderThread,
    Made,
    Raised,
)
from stream_server.server.training.stream import WAIT_S, SampleStream
from stream_server.server.user.stream_server import StreamServer
from stream_server.user_code import call_user

# As many batches have slots beside a full buffer, the one that is drawn among them.
MOST_HELD_BATCHES = 2


class LoaderStream(SampleStream):
    """Batches that the loader of `train_dataloader` makes; it is given samples one by one, as it asks for them.

    Samples are drawn `batch_size` at once, each with a draw of its own, which is released when its batch is trained or
    when the loader has dropped it. So what the loader holds back is in every checkpoint, and a restored stream gives it
    to the loader again before anything new. The loader runs only within `draw` and `form_again`.
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
    ) -> None:
        super().__init__(
            buffer,
            server,
            parameters_of=parameters_of,
            batch_size=batch_size,
            phases=phases,
            before_draw=before_draw,
        )
        self._name = f"{type(server).__name__}.train_dataloader"
        check_train_loader(loader, self._name)
        self._loader = loader
        self._samples = samples
        self._forming = BatchForming(buffer, server, parameters_of=parameters_of, batch_size=batch_size, phases=phases)
        self._thread = self._new_thread()
        self._asks = False
        self._stream_is_over = False
        self._has_ended = False
        self._num_batches = 0
        self._num_out = 0
        self._num_recognised = 0
        self._again: Block = ()
        self._held: Sequence[Draw] = ()
        self._made = (0, 0, 0)
        self._dropped: list[Draw] = []
        self._told: list[Draw] = []

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.__exit__(*exc_info)

    def draw(self, timeout_s: float) -> Batch | None:
        self.release()
        return self._next(timeout_s)

    def release(self) -> None:
        self._release(self._held)
        self._held = ()
        self._samples.none.clear()

    def form_again(self) -> Batch:
        """The first batch, by a loader that begins anew with the same samples; those that were None are None again."""
        before = self._made
        self._thread.__exit__()
        draws = [*self._held, *self._samples.end()]
        again = [(sample, draw) for draw in draws for sample in self._forming.samples(draw)]
        none = [(None, draw) for draw in self._samples.none]
        self._again = sorted([*again, *none], key=lambda given: given[1].ticket)
        self._held = ()
        self._asks = self._stream_is_over = self._has_ended = False
        self._thread = self._new_thread().__enter__()
        batch = None
        while batch is None:
            batch = self._next(WAIT_S)
        if self._made != before:
            raise UserCodeError(
                f"the loader of {self._name} must begin in the same way each time it is iterated, but its first batch "
                f"has {_in_words(*self._made)} instead of {_in_words(*before)}. Leave out the section normalization "
                "of study.json, or what depends on chance"
            )
        # The ranks have agreed on the batch as it was: what was dropped since is told with the next one.
        self._dropped = self._told
        return batch

    def _next(self, timeout_s: float) -> Batch | None:
        if self._has_ended:
            raise Closed("The loader has ended.")
        started_s = time.monotonic()
        self._note_dropped()
        block: Block | None = None
        while True:
            if self._asks:
                elapsed_s = time.monotonic() - started_s
                if elapsed_s > max(timeout_s, WAIT_S):
                    # A loader that drops nearly all must not keep this rank from the rounds.
                    return None
                block = self._block(max(0.0, timeout_s - elapsed_s))
                if block is None:
                    return None
            with self._phases.measure("transform"):
                event = self._thread.resume(block)
            block, self._asks = None, isinstance(event, Asks)
            match event:
                case Asks():
                    self._note_dropped()
                case Made(data, samples):
                    batch = self._batch(data, samples)
                    if batch is not None:
                        return batch
                case Ended():
                    self._end()
                case Raised(error):
                    raise error

    def _block(self, timeout_s: float) -> Block | None:
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
        if draw is None:
            return None
        samples = self._forming.samples(draw)
        singles = [draw] if len(draw.slots) == 1 else self._buffer.split(draw)
        self._num_out += len(singles)
        return list(zip(samples, singles, strict=True))

    def _check_room(self) -> None:
        most = (MOST_HELD_BATCHES - 1) * self._batch_size
        if self._num_out > most:
            raise UserCodeError(
                f"the loader of {self._name} holds {self._num_out} samples and asks for more, but it may hold as many "
                f"as training.batch_size, {self._batch_size}: write a larger one, make smaller batches, or shuffle by "
                'the buffer.policy "firo"'
            )

    def _batch(self, data: Any, samples: list[Any]) -> Batch | None:
        """The batch that the loader made, with what became of the samples before it; None if there is none in it."""
        handed = self._samples.handed
        taken = handed.take(samples)
        samples.clear()
        self._held = taken.draws
        self._num_recognised += len(taken.draws)
        self._num_batches += 1
        if not self._num_recognised and handed.num_given and taken.num_added:
            raise UserCodeError(
                f"no sample of the first batch that the loader of {self._name} made is one of the stream, although it "
                "was given some: pass on the objects that the dataset gives, and transform them in "
                "process_simulation_data or in collate_fn"
            )
        if not taken.size:
            return None
        self._note_dropped()
        dropped, self._dropped = self._dropped, []
        self._made = (len(taken.draws), _num_first(taken.draws), taken.size)
        self._told = dropped
        slots = np.array([draw.slots[0] for draw in taken.draws], np.intp)
        keys = np.stack([self._buffer.slots.simulation_ids[slots], self._buffer.slots.time_steps[slots]])
        return Batch(
            data=call_user(f"the loader of {self._name}", self._server.collate.convert, data),
            size=taken.size,
            keys=keys,
            is_first=np.array([draw.num_first > 0 for draw in taken.draws], bool),
            num_added=taken.num_added,
            num_dropped=len(dropped),
            num_first_dropped=_num_first(dropped),
        )

    def _note_dropped(self) -> None:
        self._drop(self._samples.handed.dropped())

    def _drop(self, draws: Sequence[Draw]) -> None:
        self._dropped += draws
        self.num_dropped += _num_first(draws)
        self._release(draws)

    def _release(self, draws: Sequence[Draw]) -> None:
        self._num_out -= len(draws)
        for draw in draws:
            self._buffer.release(draw)

    def _end(self) -> None:
        if not self._stream_is_over:
            raise UserCodeError(
                f"the loader of {self._name} ended after {self._num_batches} batches, but the stream has not: let it "
                "iterate until the StreamDataset ends, with itertools.cycle around what is shorter, and end the study "
                "by training.max_batches"
            )
        self._has_ended = True
        self._drop(self._samples.end())
        raise Closed("The loader has ended.")

    def _new_thread(self) -> LoaderThread:
        return LoaderThread(self._loader, self._samples, self._forming.process, name=f"the loader of {self._name}")


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
